//! Pure. What `nft monitor trace` prints, as the rules that a packet met. iptables writes by nftables, so that its rules are
//! told as well.

use serde::{Deserialize, Serialize};

/// The table that a measurement makes for its time, which sets the mark by which the kernel tells.
pub const TABLE: &str = "signpost-trace";

/// A rule that a packet met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleSeen {
    /// On which node.
    pub node: String,
    /// Family, table and chain: `ip kube-proxy services`.
    pub place: String,
    /// The rule, without counters and comments.
    pub text: String,
    /// What it said: `accept`, `goto spread-tcp-2`.
    pub verdict: String,
}

impl RuleSeen {
    /// Whether it gives the packet another destination.
    pub fn rewrites(&self) -> bool {
        let words: Vec<&str> = self.text.split(' ').collect();
        // `ct status dnat` only asks whether somebody did.
        words.iter().enumerate().any(|(at, word)| {
            word.eq_ignore_ascii_case("dnat") && at.checked_sub(1).is_none_or(|before| words[before] != "status")
        })
    }

    /// The name of its chain.
    pub fn chain(&self) -> &str {
        self.place.rsplit(' ').next().unwrap_or_default()
    }
}

/// The rules that packets met on a node, in order.
pub fn rules(node: &str, output: &str) -> Vec<RuleSeen> {
    output.lines().filter_map(|line| rule(node, line)).collect()
}

fn rule(node: &str, line: &str) -> Option<RuleSeen> {
    let mut words = line.strip_prefix("trace id ")?.splitn(6, ' ');
    let (_id, family, table, chain) = (words.next()?, words.next()?, words.next()?, words.next()?);
    words.next().filter(|kind| *kind == "rule")?;
    if table == TABLE {
        return None;
    }
    let (text, verdict) = words.next()?.trim_end().rsplit_once(" (verdict ")?;
    Some(RuleSeen {
        node: node.to_owned(),
        place: format!("{family} {table} {chain}"),
        text: plain(text),
        verdict: verdict.strip_suffix(')')?.to_owned(),
    })
}

/// Without counters and the comment.
fn plain(text: &str) -> String {
    let text = text.split_once(" comment \"").map_or(text, |(text, _)| text);
    let mut words = text.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "counter" {
            // packets N bytes N
            words.by_ref().take(4).for_each(drop);
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_nftables_and_iptables_are_read_and_the_rest_is_not() {
        let output = "trace id 09f ip kube-proxy nat-prerouting packet: iif \"cni0\" ip saddr 10.244.1.3 \n\
            trace id 09f inet signpost-trace pre rule tcp dport 80 meta nftrace set 1 (verdict continue)\n\
            trace id 09f ip kube-proxy services rule ip daddr . th dport vmap @service-ips comment \"a (b) #1\" (verdict goto spread-tcp-2)\n\
            trace id 09f ip nat KUBE-SEP-PXJ2 rule meta l4proto tcp  counter packets 0 bytes 0 dnat to 10.244.1.2:8080 (verdict accept)\n\
            trace id 09f ip kube-proxy filter-forward policy accept \ntrace id\n\ntrace id 1 2 3 4 rule\n";
        let found = rules("n1", output);
        let told: Vec<_> = found.iter().map(|rule| (&*rule.place, &*rule.text, &*rule.verdict)).collect();
        assert_eq!(
            told,
            [
                ("ip kube-proxy services", "ip daddr . th dport vmap @service-ips", "goto spread-tcp-2"),
                ("ip nat KUBE-SEP-PXJ2", "meta l4proto tcp dnat to 10.244.1.2:8080", "accept"),
            ]
        );
        assert_eq!((found[1].chain(), found[1].rewrites(), found[0].rewrites()), ("KUBE-SEP-PXJ2", true, false));
        let asks = RuleSeen { text: "ct state new ct status dnat jump KUBE-SERVICES".to_owned(), ..found[1].clone() };
        assert!(!asks.rewrites());
    }
}
