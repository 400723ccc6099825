//! Pure. What a pod knows of names: its host name, `/etc/hosts`, and `/etc/resolv.conf` by `dnsPolicy` and `dnsConfig`, as a
//! kubelet writes them (pkg/kubelet/network/dns, pkg/kubelet/kubelet_pods.go).

use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodSpec};

/// The domain of a lab's cluster.
pub const DOMAIN: &str = "cluster.local";
/// So many are written, as in a cluster: more are left out.
const MOST_NAMESERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCH: usize = 2048;

/// The text of `/etc/hosts`.
pub fn hosts(pod: &Pod, addresses: &[IpAddr]) -> String {
    let head = if on_host(pod) {
        "# Kubernetes-managed hosts file (host network).\n"
    } else {
        "# Kubernetes-managed hosts file.\n"
    };
    let mut text = format!(
        "{head}127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
    );
    let name = hostname(pod);
    // The first name of a line is the whole one, which `hostname -f` gives.
    let names = whole_name(pod).map_or(name.clone(), |whole| format!("{whole}\t{name}"));
    for address in addresses {
        writeln!(text, "{address}\t{names}").expect("writing to a String cannot fail");
    }
    let aliases = spec(pod).and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names: Vec<String> = alias.hostnames.iter().flatten().map(|name| word(name)).collect();
        writeln!(text, "{}\t{}", word(&alias.ip), names.join("\t")).expect("writing to a String cannot fail");
    }
    text
}

/// The text of `/etc/resolv.conf`. A node of the lab knows no name server, so that a pod which takes over its node's has none.
pub fn resolv_conf(pod: &Pod, dns: Option<IpAddr>) -> String {
    let policy = spec(pod).and_then(|spec| spec.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let asks_cluster = match policy {
        "ClusterFirst" => !on_host(pod),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let mut lines = match dns.filter(|_| asks_cluster) {
        Some(dns) => Lines {
            nameservers: vec![dns.to_string()],
            searches: searches(pod.metadata.namespace.as_deref().unwrap_or("default")),
            options: vec![("ndots".to_owned(), Some("5".to_owned()))],
        },
        None => Lines::default(),
    };
    if let Some(config) = spec(pod).and_then(|spec| spec.dns_config.as_ref()) {
        lines.add(config);
    }
    lines.text()
}

/// Where a pod of a namespace looks for a name with less than five dots.
pub fn searches(namespace: &str) -> Vec<String> {
    vec![format!("{namespace}.svc.{DOMAIN}"), format!("svc.{DOMAIN}"), DOMAIN.to_owned()]
}

/// The pod's host name: its node's if it lives in the node's network; else `spec.hostname` or its name, of at most 63
/// characters; the whole name if `setHostnameAsFQDN` asks for it.
pub fn hostname(pod: &Pod) -> String {
    let of_spec = |field: fn(&PodSpec) -> Option<String>| spec(pod).and_then(field).filter(|name| !name.is_empty());
    let name = match of_spec(|spec| spec.node_name.clone()).filter(|_| on_host(pod)) {
        Some(node) => node,
        None => of_spec(|spec| spec.hostname.clone()).or_else(|| pod.metadata.name.clone()).unwrap_or_default(),
    };
    let short = name.chars().take(63).collect::<String>();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// What the kernel is told the host's name is.
pub fn kernel_hostname(pod: &Pod) -> String {
    let asks = spec(pod).and_then(|spec| spec.set_hostname_as_fqdn) == Some(true);
    // The kernel takes 64 characters; a kubelet does not start a pod whose name is longer.
    whole_name(pod).filter(|whole| asks && whole.len() <= 64).unwrap_or_else(|| hostname(pod))
}

/// The pod's name in the cluster, if it has one: that of a pod with a subdomain.
fn whole_name(pod: &Pod) -> Option<String> {
    let subdomain = spec(pod)?.subdomain.as_deref().filter(|domain| !domain.is_empty() && !on_host(pod))?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    Some(format!("{}.{}.{}.svc.{DOMAIN}", hostname(pod), word(subdomain), word(namespace)))
}

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

fn on_host(pod: &Pod) -> bool {
    spec(pod).and_then(|spec| spec.host_network) == Some(true)
}

/// On one line, whatever it holds.
fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect()
}

#[derive(Default)]
struct Lines {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<(String, Option<String>)>,
}

impl Lines {
    /// What the pod asks for comes after what it has; an option of its own takes the place of one of the same name.
    fn add(&mut self, config: &PodDNSConfig) {
        for (have, more) in [(&mut self.nameservers, &config.nameservers), (&mut self.searches, &config.searches)] {
            for text in more.iter().flatten().map(|text| word(text)) {
                if !have.contains(&text) {
                    have.push(text);
                }
            }
        }
        for option in config.options.iter().flatten() {
            let name = word(option.name.as_deref().unwrap_or_default());
            let value = option.value.as_deref().map(word);
            match self.options.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = value,
                None => self.options.push((name, value)),
            }
        }
    }

    fn text(mut self) -> String {
        self.nameservers.truncate(MOST_NAMESERVERS);
        self.searches.truncate(MOST_SEARCHES);
        while self.searches.join(" ").len() > LONGEST_SEARCH {
            self.searches.pop();
        }
        let mut text = String::new();
        if !self.searches.is_empty() {
            text.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in &self.nameservers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        if !self.options.is_empty() {
            let one = |(name, value): &(String, Option<String>)| match value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            };
            text.push_str(&format!("options {}\n", self.options.iter().map(one).collect::<Vec<_>>().join(" ")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    const CLUSTER: &str =
        "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n";

    fn resolv(spec: Value) -> String {
        resolv_conf(&pod(spec), Some([10, 96, 0, 10].into()))
    }

    #[test]
    fn who_is_asked_follows_the_policy() {
        assert_eq!(resolv(json!({})), CLUSTER);
        assert_eq!(resolv(json!({"dnsPolicy": "ClusterFirst"})), CLUSTER);
        assert_eq!(resolv(json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true})), "");
        assert_eq!(resolv(json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true})), CLUSTER);
        assert_eq!(resolv(json!({"dnsPolicy": "Default"})), "");
        let config = json!({"nameservers": ["1.1.1.1"], "searches": ["a.b"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
        assert_eq!(
            resolv(json!({"dnsPolicy": "None", "dnsConfig": config})),
            "search a.b\nnameserver 1.1.1.1\noptions ndots:2 edns0\n"
        );
        assert_eq!(
            resolv(json!({"dnsConfig": config})),
            "search shop.svc.cluster.local svc.cluster.local cluster.local a.b\nnameserver 10.96.0.10\nnameserver 1.1.1.1\noptions ndots:2 edns0\n"
        );
    }

    #[test]
    fn a_list_is_cut_where_a_kubelet_cuts_it_and_hostile_words_stay_on_their_line() {
        let searches: Vec<String> = (0..40).map(|n| format!("a{n}")).collect();
        let servers = ["1.1.1.1", "1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"];
        let text = resolv(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": servers, "searches": searches}}));
        assert_eq!(text.matches("nameserver").count(), 3);
        assert_eq!(text.lines().next().unwrap().split(' ').count(), 33);
        let long: Vec<String> = (0..20).map(|n| format!("{n}{}", "x".repeat(200))).collect();
        let text = resolv(json!({"dnsPolicy": "None", "dnsConfig": {"searches": long}}));
        assert!(text.lines().next().unwrap().len() <= "search ".len() + 2048);
        let text = resolv(json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a\nnameserver 6.6.6.6"]}}));
        assert_eq!(text, "search a_nameserver_6.6.6.6\n");
    }

    #[test]
    fn a_pod_of_a_stateful_set_knows_its_whole_name() {
        let of_set = |more: Value| {
            let mut spec = json!({"hostname": "web-0", "subdomain": "web"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            pod(spec)
        };
        let text = hosts(&of_set(json!({})), &["10.244.1.2".parse().unwrap()]);
        assert!(text.contains("10.244.1.2\tweb-0.web.shop.svc.cluster.local\tweb-0\n"), "{text}");
        assert_eq!(kernel_hostname(&of_set(json!({}))), "web-0");
        assert_eq!(kernel_hostname(&of_set(json!({"setHostnameAsFQDN": true}))), "web-0.web.shop.svc.cluster.local");
    }

    #[test]
    fn a_pod_on_its_nodes_network_has_its_nodes_name() {
        let pod = pod(json!({"hostNetwork": true, "hostname": "mine", "nodeName": "n1"}));
        assert_eq!(hostname(&pod), "n1");
        let text = hosts(&pod, &["172.18.0.11".parse().unwrap()]);
        assert!(text.contains("(host network)") && text.contains("172.18.0.11\tn1\n"), "{text}");
    }

    #[test]
    fn a_hostile_alias_stays_on_its_line() {
        let alias = json!([{"ip": "1.2.3.4", "hostnames": ["a\n6.6.6.6 bank", "b"]}]);
        let text = hosts(&pod(json!({"hostAliases": alias})), &["10.244.1.2".parse().unwrap()]);
        assert!(
            text.ends_with("10.244.1.2\tweb-0\n\n# Entries added by HostAliases.\n1.2.3.4\ta_6.6.6.6_bank\tb\n"),
            "{text}"
        );
    }
}
