//! Pure. Which of a node's pod addresses are given out, and what a pod finds in `/etc/hosts` and `/etc/resolv.conf`.

use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use crate::topology::POD_HOSTS;

/// The host parts of one node's pods. They are given out in turn, so that an address rests before it is used again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPool {
    taken: std::collections::BTreeSet<u8>,
    last: Option<u8>,
}

impl HostPool {
    /// The next free one.
    pub fn take(&mut self) -> Option<u8> {
        let after = self.last.map_or(*POD_HOSTS.start(), |last| last.saturating_add(1));
        let free = (after..=*POD_HOSTS.end())
            .chain(POD_HOSTS)
            .find(|host| POD_HOSTS.contains(host) && !self.taken.contains(host))?;
        self.taken.insert(free);
        self.last = Some(free);
        Some(free)
    }

    /// Gives one back.
    pub fn release(&mut self, host: u8) {
        self.taken.remove(&host);
    }
}

/// The text of `/etc/hosts`.
pub fn hosts(pod: &Pod, addresses: &[IpAddr]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    let mut line = |address: &str, names: &str| {
        let clean = |text: &str| text.replace(['\n', '\r'], " ");
        writeln!(text, "{} {}", clean(address), clean(names)).expect("writing to a String cannot fail");
    };
    let name = hostname(pod);
    // The first name of a line is the whole one, which `hostname -f` gives.
    let name = match pod.spec.as_ref().and_then(|spec| spec.subdomain.as_deref()).filter(|domain| !domain.is_empty()) {
        Some(subdomain) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            format!("{name}.{subdomain}.{namespace}.svc.cluster.local {name}")
        }
        None => name,
    };
    for address in addresses {
        line(&address.to_string(), &name);
    }
    for alias in pod.spec.iter().flat_map(|spec| spec.host_aliases.iter().flatten()) {
        line(&alias.ip, &alias.hostnames.clone().unwrap_or_default().join(" "));
    }
    text
}

/// The text of `/etc/resolv.conf`: the cluster's name service and search list.
pub fn resolv_conf(pod: &Pod, dns: Option<IpAddr>) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut text = String::new();
    if let Some(dns) = dns {
        text.push_str(&format!("nameserver {dns}\n"));
    }
    text.push_str(&format!("search {namespace}.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"));
    text
}

/// The pod's host name: `spec.hostname` or its name, of at most 63 characters.
pub fn hostname(pod: &Pod) -> String {
    let of_spec = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    let name = of_spec.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_rest_before_they_are_used_again() {
        let mut pool = HostPool::default();
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some(2), Some(3), Some(4)]);
        pool.release(3);
        assert_eq!(pool.take(), Some(5));
        for _ in 6..=254 {
            assert!(pool.take().is_some());
        }
        assert_eq!([pool.take(), pool.take()], [Some(3), None]);
        pool.release(200);
        assert_eq!(pool.take(), Some(200));
    }

    #[test]
    fn a_pod_of_a_stateful_set_knows_its_whole_name() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-0".into());
        pod.metadata.namespace = Some("shop".into());
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            hostname: Some("web-0".into()),
            subdomain: Some("web".into()),
            ..Default::default()
        });
        let text = hosts(&pod, &["10.244.1.2".parse().unwrap()]);
        assert!(text.contains("10.244.1.2 web-0.web.shop.svc.cluster.local web-0\n"), "{text}");
    }

    #[test]
    fn a_hostile_alias_stays_on_its_line() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-1".into());
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            host_aliases: Some(vec![k8s_openapi::api::core::v1::HostAlias {
                ip: "1.2.3.4".into(),
                hostnames: Some(vec!["a\n6.6.6.6 bank".into()]),
            }]),
            ..Default::default()
        });
        let text = hosts(&pod, &["10.244.1.2".parse().unwrap()]);
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("10.244.1.2 web-1\n"));
    }
}
