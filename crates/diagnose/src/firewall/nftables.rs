//! Pure. `nft -json list table`, as far as it is understood.

use serde_json::Value;
use signpost_core::object::Family;

use super::{Chain, Condition, Rule, Verdict, ranges_of};

/// The chains of a listing. Others' tables may hold anything: what is not understood is kept as such.
pub fn read(listing: &Value) -> Vec<Chain> {
    let items = || listing.get("nftables").and_then(Value::as_array).into_iter().flatten();
    let mut chains: Vec<Chain> = items().filter_map(|item| chain(item.get("chain")?)).collect();
    for item in items().filter_map(|item| item.get("rule")) {
        let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
        let table = format!("{} {}", text("family"), text("table"));
        if let Some(chain) = chains.iter_mut().find(|chain| chain.table == table && chain.name == text("chain")) {
            chain.rules.push(rule(item));
        }
    }
    chains
}

fn chain(value: &Value) -> Option<Chain> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let family = text("family")?;
    let families = match family {
        "ip" => vec![Family::Ipv4],
        "ip6" => vec![Family::Ipv6],
        "inet" => vec![Family::Ipv4, Family::Ipv6],
        _ => return None,
    };
    Some(Chain {
        tool: "nft".to_owned(),
        families,
        table: format!("{family} {}", text("table")?),
        name: text("name")?.to_owned(),
        hook: text("hook").map(str::to_owned),
        priority: value.get("prio").and_then(Value::as_i64).unwrap_or(0),
        drops_the_rest: text("policy") == Some("drop"),
        dropped: None,
        rules: Vec::new(),
    })
}

fn rule(value: &Value) -> Rule {
    let mut rule = Rule { text: String::new(), conditions: Vec::new(), verdict: Verdict::Continue, packets: None };
    let mut words = Vec::new();
    for part in value.get("expr").and_then(Value::as_array).into_iter().flatten() {
        let Some((kind, inner)) = part.as_object().and_then(|part| part.iter().next()) else { continue };
        let target = || inner.get("target").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "match" => {
                let (condition, word) = matched(inner);
                rule.conditions.push(condition);
                words.push(word);
            }
            "counter" => rule.packets = inner.get("packets").and_then(Value::as_u64),
            "accept" => rule.verdict = Verdict::Accept,
            "drop" => rule.verdict = Verdict::Drop,
            "reject" => rule.verdict = Verdict::Reject,
            "return" => rule.verdict = Verdict::Return,
            "jump" => rule.verdict = Verdict::Jump(target()),
            "goto" => rule.verdict = Verdict::Goto(target()),
            "log" | "mangle" | "comment" => {}
            other => {
                rule.conditions.push(Condition::Unknown(other.to_owned()));
                words.push(other.to_owned());
            }
        }
    }
    words.push(match &rule.verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Reject => "reject".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(to) => format!("jump {to}"),
        Verdict::Goto(to) => format!("goto {to}"),
        Verdict::Continue => "(no verdict)".to_owned(),
    });
    rule.text = words.join(" ");
    rule
}

fn matched(value: &Value) -> (Condition, String) {
    let left = value.get("left").unwrap_or(&Value::Null);
    let right = value.get("right").unwrap_or(&Value::Null);
    let op = value.get("op").and_then(Value::as_str).unwrap_or_default();
    let not = op == "!=";
    let field = left.pointer("/payload/field").and_then(Value::as_str);
    let key = left.pointer("/meta/key").or_else(|| left.pointer("/ct/key")).and_then(Value::as_str);
    let name = field.or(key).unwrap_or("?");
    let word = format!("{name} {}{}", if not { "!= " } else { "" }, plain(right));
    let known = matches!(op, "==" | "!=" | "in").then(|| condition(name, field.is_some(), left, right, not)).flatten();
    (known.unwrap_or_else(|| Condition::Unknown(word.clone())), word)
}

fn condition(name: &str, is_field: bool, left: &Value, right: &Value, not: bool) -> Option<Condition> {
    let words = || match right {
        Value::String(word) => Some(vec![word.clone()]),
        Value::Number(number) => Some(vec![number.to_string()]),
        Value::Array(list) => list.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        Value::Object(_) => right.get("set")?.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    match name {
        "saddr" if is_field => Some(Condition::Source(ranges_of(right)?, not)),
        "daddr" if is_field => Some(Condition::Destination(ranges_of(right)?, not)),
        // `tcp dport` asks for the protocol too.
        "dport" if is_field && !not => {
            let ports = Condition::Port(ports(right)?, false);
            match left.pointer("/payload/protocol").and_then(Value::as_str) {
                Some("tcp" | "th") => Some(ports),
                _ => None,
            }
        }
        "l4proto" | "protocol" | "nexthdr" => Some(Condition::Protocol(words()?, not)),
        "state" => Some(Condition::State(words()?, not)),
        _ => None,
    }
}

fn ports(value: &Value) -> Option<Vec<(u16, u16)>> {
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    if let Some(one) = number(value) {
        return Some(vec![(one, one)]);
    }
    if let Some(range) = value.get("range").and_then(Value::as_array) {
        return Some(vec![(number(range.first()?)?, number(range.get(1)?)?)]);
    }
    let each: Option<Vec<Vec<(u16, u16)>>> = value.get("set")?.as_array()?.iter().map(ports).collect();
    each.map(|each| each.concat())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => match (value.pointer("/prefix/addr").and_then(Value::as_str), value.pointer("/prefix/len"))
        {
            (Some(address), Some(length)) => format!("{address}/{length}"),
            _ => value.to_string(),
        },
        other => other.to_string(),
    }
}
