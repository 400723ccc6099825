//! Pure. The Pod object of a scenario's short form: a light pod, whose echo server the lab runs inside its own process, so
//! that hundreds come and go in seconds.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::format::ShortPod;
use crate::kubelet::{LIGHT, READY};

/// The Pod that a short form stands for.
pub fn pod_object(pod: &ShortPod) -> Value {
    let arguments: Vec<String> = pod
        .listen
        .iter()
        .flat_map(|listen| {
            let place = match pod.bind {
                Some(bind) => SocketAddr::new(bind, listen.port.get()).to_string(),
                None => listen.port.to_string(),
            };
            ["--listen".to_owned(), format!("{}/{place}", listen.protocol)]
        })
        .collect();
    let ports: Vec<Value> = pod
        .listen
        .iter()
        .map(|listen| {
            let mut port = json!({
                "containerPort": listen.port,
                "protocol": listen.protocol.to_string().to_uppercase(),
            });
            if let Some(name) = &listen.name {
                port["name"] = json!(name);
            }
            port
        })
        .collect();
    let mut spec = json!({
        "terminationGracePeriodSeconds": pod.grace_s.unwrap_or(0),
        "containers": [{"name": "echo", "image": "signpost/echo", "args": arguments, "ports": ports}],
    });
    if let Some(node) = &pod.node {
        spec["nodeName"] = json!(node);
    }
    if pod.host_network {
        spec["hostNetwork"] = json!(true);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "labels": pod.labels,
            "annotations": {LIGHT: "true", READY: pod.ready.to_string()},
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_form_becomes_a_whole_pod() {
        let short = ShortPod {
            namespace: "default".to_owned(),
            name: "web-1".to_owned(),
            node: Some("n1".to_owned()),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            listen: vec!["http=tcp/8080".parse().unwrap(), "udp/53".parse().unwrap()],
            ready: false,
            grace_s: None,
            bind: Some("::1".parse().unwrap()),
            host_network: true,
        };
        let pod = pod_object(&short);
        assert_eq!(pod["metadata"]["annotations"][READY], "false");
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["spec"]["hostNetwork"], true);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["--listen", "tcp/[::1]:8080", "--listen", "udp/[::1]:53"]));
        assert_eq!(container["ports"][0], json!({"name": "http", "containerPort": 8080, "protocol": "TCP"}));
    }
}
