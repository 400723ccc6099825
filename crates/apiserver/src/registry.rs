//! Pure. The kinds that the API serves: their names, paths and what is particular about each.
//!
//! Everything else in this crate is generic over this table. A kind that is another version's view of the same stored
//! objects (Events of `events.k8s.io`) names the kind it is stored as.

/// One kind as one group and version serves it.
#[derive(Debug, PartialEq, Eq)]
pub struct KindInfo {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version in the group.
    pub version: &'static str,
    /// `Service`.
    pub kind: &'static str,
    /// `services`: the name in paths.
    pub plural: &'static str,
    /// `service`.
    pub singular: &'static str,
    /// `svc`.
    pub short_names: &'static [&'static str],
    /// `all`, which `kubectl get all` asks for.
    pub categories: &'static [&'static str],
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// `status` is a subresource of its own.
    pub has_status: bool,
    /// `/scale` is served.
    pub has_scale: bool,
    /// `metadata.generation` counts changes of the specification.
    pub has_generation: bool,
    /// A PUT of an object that does not exist creates it.
    pub create_on_update: bool,
    /// How names of objects are checked.
    pub name_rule: NameRule,
    /// Index of the objects' place in the store; shared by two versions of the same objects.
    pub slot: usize,
}

/// What a kind's object names must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 label: at most 63 characters.
    Label,
    /// RFC 1123 subdomain: at most 253 characters.
    Subdomain,
    /// An IP address in its canonical form.
    IpAddress,
}

impl KindInfo {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `services` or `deployments.apps`, as errors name the resource.
    pub fn qualified_plural(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `Service` or `Deployment.apps`, as validation errors name the kind.
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// Whether a real cluster has it as a custom resource: values that say nothing are kept, and there is no protobuf.
    pub fn is_custom(&self) -> bool {
        is_custom_group(self.group)
    }

    /// The kind that this one's objects are stored as: itself but for a second version.
    pub fn stored(&self) -> &'static KindInfo {
        &KINDS[self.slot]
    }
}

const BASE: KindInfo = KindInfo {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    has_status: false,
    has_scale: false,
    has_generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    slot: 0,
};

const APPS: KindInfo =
    KindInfo { group: "apps", categories: &["all"], has_status: true, has_scale: true, has_generation: true, ..BASE };

/// What on a real cluster are custom resources.
const METALLB: KindInfo =
    KindInfo { group: "metallb.io", version: "v1beta1", has_status: true, has_generation: true, ..BASE };

/// Number of places in the store; the first `SLOTS` entries of [`KINDS`] are stored under their own index.
pub const SLOTS: usize = 28;

/// All kinds. Of two versions of the same objects the stored one comes first.
pub static KINDS: &[KindInfo] = &[
    KindInfo {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        has_status: true,
        name_rule: NameRule::Label,
        slot: 0,
        ..BASE
    },
    KindInfo {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        has_status: true,
        slot: 1,
        ..BASE
    },
    KindInfo {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        categories: &["all"],
        has_status: true,
        has_generation: true,
        slot: 2,
        ..BASE
    },
    KindInfo {
        kind: "Service",
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        categories: &["all"],
        has_status: true,
        name_rule: NameRule::Label,
        slot: 3,
        ..BASE
    },
    KindInfo {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        create_on_update: true,
        slot: 4,
        ..BASE
    },
    KindInfo {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        has_generation: true,
        slot: 5,
        ..BASE
    },
    KindInfo { kind: "ConfigMap", plural: "configmaps", singular: "configmap", short_names: &["cm"], slot: 6, ..BASE },
    KindInfo { kind: "Secret", plural: "secrets", singular: "secret", slot: 7, ..BASE },
    KindInfo {
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        create_on_update: true,
        slot: 8,
        ..BASE
    },
    KindInfo {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        create_on_update: true,
        slot: 9,
        ..BASE
    },
    KindInfo {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short_names: &["sa"],
        slot: 10,
        ..BASE
    },
    KindInfo {
        kind: "Deployment",
        plural: "deployments",
        singular: "deployment",
        short_names: &["deploy"],
        slot: 11,
        ..APPS
    },
    KindInfo {
        kind: "ReplicaSet",
        plural: "replicasets",
        singular: "replicaset",
        short_names: &["rs"],
        slot: 12,
        ..APPS
    },
    KindInfo {
        kind: "StatefulSet",
        plural: "statefulsets",
        singular: "statefulset",
        short_names: &["sts"],
        slot: 13,
        ..APPS
    },
    KindInfo {
        group: "networking.k8s.io",
        kind: "NetworkPolicy",
        plural: "networkpolicies",
        singular: "networkpolicy",
        short_names: &["netpol"],
        has_generation: true,
        slot: 14,
        ..BASE
    },
    KindInfo {
        group: "networking.k8s.io",
        kind: "ServiceCIDR",
        plural: "servicecidrs",
        singular: "servicecidr",
        namespaced: false,
        has_status: true,
        slot: 15,
        ..BASE
    },
    KindInfo {
        group: "networking.k8s.io",
        kind: "IPAddress",
        plural: "ipaddresses",
        singular: "ipaddress",
        short_names: &["ip"],
        namespaced: false,
        name_rule: NameRule::IpAddress,
        slot: 16,
        ..BASE
    },
    KindInfo {
        group: "apps",
        kind: "ControllerRevision",
        plural: "controllerrevisions",
        singular: "controllerrevision",
        slot: 17,
        ..BASE
    },
    KindInfo { kind: "IPAddressPool", plural: "ipaddresspools", singular: "ipaddresspool", slot: 18, ..METALLB },
    KindInfo { kind: "L2Advertisement", plural: "l2advertisements", singular: "l2advertisement", slot: 19, ..METALLB },
    KindInfo {
        kind: "BGPAdvertisement",
        plural: "bgpadvertisements",
        singular: "bgpadvertisement",
        slot: 20,
        ..METALLB
    },
    KindInfo { version: "v1beta2", kind: "BGPPeer", plural: "bgppeers", singular: "bgppeer", slot: 21, ..METALLB },
    KindInfo { kind: "BFDProfile", plural: "bfdprofiles", singular: "bfdprofile", slot: 22, ..METALLB },
    KindInfo { kind: "Community", plural: "communities", singular: "community", slot: 23, ..METALLB },
    KindInfo { kind: "ServiceL2Status", plural: "servicel2statuses", singular: "servicel2status", slot: 24, ..METALLB },
    KindInfo {
        kind: "ServiceBGPStatus",
        plural: "servicebgpstatuses",
        singular: "servicebgpstatus",
        slot: 25,
        ..METALLB
    },
    KindInfo {
        kind: "ConfigurationState",
        plural: "configurationstates",
        singular: "configurationstate",
        slot: 26,
        ..METALLB
    },
    KindInfo {
        group: "frrk8s.metallb.io",
        kind: "BGPSessionState",
        plural: "bgpsessionstates",
        singular: "bgpsessionstate",
        slot: 27,
        ..METALLB
    },
    KindInfo {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        create_on_update: true,
        slot: 8,
        ..BASE
    },
];

/// Whether the kinds of a group are custom resources on a real cluster.
pub fn is_custom_group(group: &str) -> bool {
    group == METALLB.group || group == "frrk8s.metallb.io"
}

/// The kind that a path names.
pub fn by_plural(group: &str, version: &str, plural: &str) -> Option<&'static KindInfo> {
    KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The stored kind of this name; kind names are unique among those.
pub fn by_kind(kind: &str) -> Option<&'static KindInfo> {
    KINDS[..SLOTS].iter().find(|info| info.kind == kind)
}

/// One of the kinds that this crate itself needs.
///
/// # Panics
/// When `kind` is none of the table's, which a test of the table excludes.
pub(crate) fn known(kind: &'static str) -> &'static KindInfo {
    by_kind(kind).expect("a kind of the table above")
}

/// All groups but the core one, with their version, in the table's order.
pub fn groups() -> Vec<(&'static str, &'static str)> {
    let mut groups = Vec::new();
    for kind in KINDS.iter().filter(|kind| !kind.group.is_empty()) {
        if !groups.contains(&(kind.group, kind.version)) {
            groups.push((kind.group, kind.version));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_kind_lies_at_its_own_slot() {
        for (index, kind) in KINDS.iter().enumerate() {
            assert_eq!(index < SLOTS, kind.slot == index, "{}", kind.kind);
            assert_eq!(kind.stored().kind, kind.kind);
            assert_eq!(kind.stored().namespaced, kind.namespaced);
        }
    }

    #[test]
    fn names_in_paths_and_kinds_are_unique() {
        for (index, kind) in KINDS.iter().enumerate() {
            assert_eq!(kind.is_custom(), kind.group.ends_with("metallb.io"), "{}", kind.kind);
            for other in &KINDS[index + 1..] {
                assert!((kind.group, kind.plural) != (other.group, other.plural));
                assert!((kind.group, kind.kind) != (other.group, other.kind));
            }
        }
    }
}
