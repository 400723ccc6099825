//! `exec` and `logs`, carried to whoever runs pods; here to programs of this machine.

use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use signpost_apiserver::pod_streams::{ContainerRef, ExecRequest, LogOptions, PodStreamError, PodStreams};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::cluster::Cluster;

/// Runs programs as they are, without a pod around them.
struct Machine;

impl PodStreams for Machine {
    fn logs(
        &self,
        container: ContainerRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, std::io::Result<Bytes>>, PodStreamError>> {
        let asked = format!("{} {:?} {:?}\n", container.pod, container.container, options.tail_lines);
        let lines = vec![Ok(Bytes::from(asked)), Ok(Bytes::from("second\n"))];
        Box::pin(async move { Ok(futures::stream::iter(lines).boxed()) })
    }

    fn exec(&self, mut request: ExecRequest) -> BoxFuture<'_, Result<i32, PodStreamError>> {
        Box::pin(async move {
            if let Some(sizes) = &mut request.terminal {
                let (columns, rows) = *sizes.wait_for(|size| *size != (80, 24)).await.expect("a size comes");
                let said = format!("{columns}x{rows}\n");
                request.stdout.expect("a terminal has output").write_all(said.as_bytes()).await.expect("it is read");
                return Ok(0);
            }
            let program = request.command[0].clone();
            let mut child = Command::new(&program)
                .args(&request.command[1..])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(|source| PodStreamError::Start { program, source })?;
            let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            let mut stderr = child.stderr.take().expect("piped");
            let input = async move {
                if let Some(mut from) = request.stdin {
                    // The program may close its input first.
                    let _ = tokio::io::copy(&mut from, &mut stdin).await;
                }
            };
            let (mut out, mut err) = (request.stdout, request.stderr);
            let output = async {
                if let Some(to) = &mut out {
                    tokio::io::copy(&mut stdout, to).await.expect("the API reads");
                }
            };
            let errors = async {
                if let Some(to) = &mut err {
                    tokio::io::copy(&mut stderr, to).await.expect("the API reads");
                }
            };
            let finished = async { tokio::join!(output, errors) };
            tokio::select! {
                _ = async { input.await; std::future::pending::<()>().await } => {}
                _ = finished => {}
            }
            Ok(child.wait().await.expect("a child ends").code().unwrap_or(128))
        })
    }
}

async fn cluster_with_pod() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.server.set_pod_streams(Arc::new(Machine));
    cluster.ok(&["run", "p", "--image=signpost/echo", "--overrides={\"spec\":{\"nodeName\":\"n1\"}}"]).await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_carries_input_output_and_the_exit_status() {
    let cluster = cluster_with_pod().await;
    let both = cluster.run(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]).await;
    assert_eq!((both.code, both.out.as_str()), (3, "out\n"), "{both:#?}");
    assert!(both.err.contains("err\n") && both.err.contains("exit code 3"), "{both:#?}");
    let input: Vec<u8> = (0..200_000_u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let counted = cluster.run_with(&["exec", "-i", "p", "--", "sha256sum"], &input).await;
    let expected = {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(&input);
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(counted.out, format!("{expected}  -\n"));
    let large = cluster.run(&["exec", "p", "--", "head", "-c", "20000000", "/dev/zero"]).await;
    assert_eq!((large.code, large.out.len()), (0, 20_000_000));
    let missing = cluster.refused(&["exec", "p", "--", "/no/such/program"]).await;
    assert!(missing.contains("cannot run /no/such/program"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_tells_the_terminals_size() {
    let cluster = cluster_with_pod().await;
    let mut command = Command::new("script");
    let kubectl = cluster.command(&["exec", "-it", "p", "--", "x"]);
    let kubectl = kubectl.as_std();
    let environment = kubectl.get_envs().filter_map(|(key, value)| Some((key, value?)));
    command.args(["-qec", "stty cols 132 rows 43; kubectl exec -it p -- x", "/dev/null"]).envs(environment);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), command.output()).await;
    let output = ended.expect("it ends").expect("script is installed");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("132x43"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_carried_with_their_options() {
    let cluster = cluster_with_pod().await;
    assert_eq!(cluster.ok(&["logs", "p", "--tail=5"]).await, "p Some(\"p\") Some(5)\nsecond\n");
    assert_eq!(cluster.ok(&["logs", "-f", "p"]).await, "p Some(\"p\") None\nsecond\n");
    let wrong = cluster.refused(&["logs", "p", "-c", "nope"]).await;
    assert!(wrong.contains("container nope is not valid for pod p"), "{wrong}");
    cluster.ok(&["run", "nowhere", "--image=signpost/echo"]).await;
    let unplaced = cluster.refused(&["exec", "nowhere", "--", "true"]).await;
    assert!(unplaced.contains("pod nowhere does not have a host assigned"), "{unplaced}");
}
