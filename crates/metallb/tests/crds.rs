//! The CRDs that are shipped are those of the structs; MetalLB's documented manifests are read whole.

use std::path::Path;

use serde_json::Value;
use signpost_metallb::{BGPPeer, IPAddressPool, L2Advertisement, crd};

const HEAD: &str = "# Made of the structs in crates/metallb: `SIGNPOST_REWRITE_GOLDEN=1 cargo test -p signpost-metallb` writes it anew.\n";

#[test]
fn the_shipped_crds_are_those_of_the_structs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds/metallb.yaml");
    let documents: Vec<String> = crd::crds().iter().map(|crd| serde_saphyr::to_string(crd).unwrap()).collect();
    let text = format!("{HEAD}{}", documents.iter().map(|one| format!("---\n{one}")).collect::<String>());
    if std::env::var_os("SIGNPOST_REWRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "SIGNPOST_REWRITE_GOLDEN=1 rewrites it");
}

/// What an API server demands of a schema: each part has a type (or takes anything), and there are no references.
#[test]
fn the_schemas_are_structural() {
    fn check(at: &str, schema: &Value) {
        assert!(schema.get("$ref").is_none(), "{at} refers elsewhere");
        let kind = schema["type"].as_str();
        assert!(kind.is_some() || schema["x-kubernetes-int-or-string"] == true, "{at} has no type: {schema}");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{at}.{name}"), inner);
        }
        if let Some(items) = schema.get("items") {
            check(&format!("{at}[]"), items);
        }
        assert!(kind != Some("array") || schema.get("items").is_some(), "{at} has no items");
    }
    for crd in crd::crds() {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        check(crd["metadata"]["name"].as_str().unwrap(), schema);
    }
}

#[test]
fn an_object_reads_back_as_written_and_a_list_may_leave_out_its_kind() {
    let yaml = "{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: default, namespace: metallb-system},
        spec: {addresses: [172.18.15.200-172.18.15.210, 'fc00:f853:0ccd:e799::/124'], autoAssign: false, avoidBuggyIPs: true,
        serviceAllocation: {priority: 50, namespaces: [a], namespaceSelectors: [{matchLabels: {team: red}}],
        serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [bar]}]}]}}}";
    let value: Value = serde_saphyr::from_str(yaml).unwrap();
    let pool: IPAddressPool = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&pool).unwrap(), value);
    let bare: L2Advertisement = serde_json::from_str(r#"{"metadata": {"name": "a"}}"#).unwrap();
    assert_eq!((bare.kind.as_str(), bare.api_version.as_str()), ("L2Advertisement", "metallb.io/v1beta1"));
    let yaml = "{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: p}, spec: {myASN: 64512, peerASN: 4200000000,
        peerAddress: 172.30.0.3, peerPort: 1179, holdTime: 1m30s, routerID: 10.0.0.1, ebgpMultiHop: true, bfdProfile: fast,
        nodeSelectors: [{matchLabels: {rack: frontend}}], passwordSecret: {name: s, namespace: metallb-system}}}";
    let value: Value = serde_saphyr::from_str(yaml).unwrap();
    let peer: BGPPeer = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&peer).unwrap(), value);
}
