//! `get -w`, `wait` and `rollout status`: what follows changes.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;

use crate::cluster::Cluster;

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await;
    line.expect("a line within twenty seconds").expect("kubectl's output can be read").expect("kubectl goes on")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_w_prints_each_change_as_a_row() {
    let cluster = Cluster::start().await;
    let mut watching = cluster.command(&["get", "deployments", "-w"]).spawn().expect("kubectl is installed");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    cluster.ok(&["create", "deployment", "web", "--image=signpost/echo"]).await;
    let header = next(&mut lines).await;
    assert!(header.starts_with("NAME") && header.contains("UP-TO-DATE"), "{header}");
    assert!(next(&mut lines).await.contains("0/1"));
    cluster.ok(&["scale", "deployment", "web", "--replicas=4"]).await;
    let row = next(&mut lines).await;
    assert!(row.starts_with("web") && row.contains("0/4"), "{row}");
    watching.kill().await.expect("it runs still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_status_and_wait_end_with_the_status() {
    let cluster = Cluster::start().await;
    cluster.ok(&["create", "deployment", "web", "--image=signpost/echo"]).await;
    let rollout = cluster.command(&["rollout", "status", "deployment/web"]).spawn().expect("kubectl is installed");
    let waiting = cluster.command(&["wait", "--for=condition=Available", "deployment/web"]);
    let waiting = { waiting }.spawn().expect("kubectl is installed");
    let status = "{\"status\":{\"observedGeneration\":1,\"replicas\":1,\"updatedReplicas\":1,\"readyReplicas\":1,\
                  \"availableReplicas\":1,\"conditions\":[{\"type\":\"Available\",\"status\":\"True\"}]}}";
    cluster.ok(&["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", status]).await;
    for (child, text) in [(rollout, "successfully rolled out"), (waiting, "condition met")] {
        let ended = tokio::time::timeout(Duration::from_secs(20), child.wait_with_output()).await;
        let output = ended.expect("it ends with the status").expect("its output can be read");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && printed.contains(text), "{output:?}");
    }
    cluster.ok(&["rollout", "restart", "deployment/web"]).await;
    let generation = cluster.ok(&["get", "deployment", "web", "-o=jsonpath={.metadata.generation}"]).await;
    assert_eq!(generation, "2", "a status is no new generation, a restart is");
}
