//! An acknowledged write survives the death of its process.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use signpost_apiserver::{ApiConfig, ApiServer, ApiServerError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::{config_map, object};

const DIRECTORY: &str = "SIGNPOST_TEST_DIRECTORY";

async fn open(dir: &Path) -> Arc<ApiServer> {
    let config = ApiConfig { dir: Some(dir.to_owned()), ..ApiConfig::default() };
    ApiServer::open(config).await.expect("a directory of one's own can be used")
}

/// The process that is killed: eight writers, each says what was acknowledged to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that kills it"]
async fn writes_until_it_is_killed() {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).expect("set by the test that runs this"));
    let server = open(&dir).await;
    let writers = (0..8).map(|writer| {
        let api: Api<ConfigMap> = Api::default_namespaced(server.client());
        tokio::spawn(async move {
            for number in 0_u32.. {
                let name = format!("w{writer}-{number}");
                api.create(&PostParams::default(), &config_map(&name)).await.expect("it can be written");
                println!("acknowledged {name}");
                if number >= 3 {
                    let old = format!("w{writer}-{}", number - 3);
                    api.delete(&old, &DeleteParams::default()).await.expect("it can be deleted");
                    println!("deleted {old}");
                }
            }
        })
    });
    futures::future::join_all(writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "durability::writes_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, dir.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said: Vec<String> = Vec::new();
    let mut hear = |line: &str| {
        said.extend(line.split_once("acknowledged ").map(|(_, name)| format!("+{name}")));
        said.extend(line.split_once("deleted ").map(|(_, name)| format!("-{name}")));
        said.len()
    };
    while hear(&crate::within(lines.next_line()).await.unwrap().expect("it writes on")) < 300 {}
    // SIGKILL, in the middle of writes; what it said until then counts.
    child.kill().await.unwrap();
    while let Some(line) = lines.next_line().await.unwrap() {
        hear(&line);
    }
    let server = open(dir.path()).await;
    let api: Api<ConfigMap> = Api::default_namespaced(server.client());
    // The three newest of a writer are not to be deleted yet; of older ones a deletion may be durable but untold.
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    let told = |sign: char| {
        said.iter()
            .filter_map(move |line| line.strip_prefix(sign)?.split_once('-'))
            .map(|(writer, number)| (writer, number.parse::<u32>().expect("the child numbers its objects")))
    };
    for (writer, number) in told('+') {
        newest.entry(writer).and_modify(|newest| *newest = number.max(*newest)).or_insert(number);
    }
    for (writer, number) in told('+').filter(|(writer, number)| number + 3 > newest[writer]) {
        assert!(api.get_opt(&format!("{writer}-{number}")).await.unwrap().is_some(), "{writer}-{number} is lost");
    }
    for (writer, number) in told('-') {
        assert!(api.get_opt(&format!("{writer}-{number}")).await.unwrap().is_none(), "{writer}-{number} is back");
    }
    let created = api.create(&PostParams::default(), &config_map("after")).await.unwrap();
    let revision: usize = created.metadata.resource_version.unwrap().parse().unwrap();
    assert!(revision > said.len(), "the revision goes on");
}

#[tokio::test]
async fn a_restart_keeps_objects_and_what_services_hold() {
    let dir = tempfile::tempdir().unwrap();
    let service = |name: &str, address: &str| -> Service {
        object(json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}}))
    };
    let server = open(dir.path()).await;
    let api: Api<Service> = Api::default_namespaced(server.client());
    api.create(&PostParams::default(), &service("a", "10.96.0.50")).await.unwrap();
    let revision = server.revision("Service");
    let mode = std::fs::metadata(dir.path().join("objects.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "Secrets are among the objects");
    let busy = ApiServer::open(ApiConfig { dir: Some(dir.path().to_owned()), ..ApiConfig::default() }).await;
    assert!(matches!(busy, Err(ApiServerError::Store(_))), "two servers on one directory");
    server.close();
    drop((api, server));
    let server = crate::within(async {
        loop {
            let config = ApiConfig { dir: Some(dir.path().to_owned()), ..ApiConfig::default() };
            match ApiServer::open(config).await {
                Ok(server) => return server,
                // The background task lets go of the first server in its own time.
                Err(ApiServerError::Store(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
    assert_eq!(server.revision("Service"), revision, "nothing was made anew");
    let api: Api<Service> = Api::default_namespaced(server.client());
    assert!(api.get("a").await.is_ok());
    let error = api.create(&PostParams::default(), &service("b", "10.96.0.50")).await.unwrap_err();
    assert!(error.to_string().contains("provided IP is already allocated"), "{error}");
}
