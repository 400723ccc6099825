//! Pure. The path of the field that stands on a line of YAML, by its indentation.

/// Such as `nftables.minSyncPeriod`; `[]` stands for an item of a list. Empty if the line has no field above or on it.
/// `line` counts from 1. Only for messages: block style is understood, flow style gives the field that it belongs to.
pub(super) fn field_at(text: &str, line: u64) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let at = usize::try_from(line).unwrap_or(1).clamp(1, lines.len().max(1)) - 1;
    let mut parts: Vec<&str> = Vec::new();
    let mut inside = usize::MAX;
    for written in lines.get(..=at).unwrap_or_default().iter().rev() {
        let content = written.trim_start();
        let indent = written.len() - content.len();
        let item = content.strip_prefix("- ");
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        // The items of a list may stand at the indentation of its field.
        let names_list = parts.first() == Some(&"[]") && item.is_none() && indent == inside;
        let key_indent = if item.is_some() { indent + 2 } else { indent };
        if (key_indent < inside || names_list)
            && let Some(key) = key_of(item.unwrap_or(content))
        {
            parts.insert(0, key);
            inside = key_indent;
        }
        if item.is_some() && indent < inside {
            parts.insert(0, "[]");
            inside = indent;
        }
    }
    parts.join(".").replace(".[]", "[]")
}

fn key_of(content: &str) -> Option<&str> {
    let (key, rest) = content.split_once(':')?;
    let key = key.trim().trim_matches(['"', '\'']);
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    (plain && (rest.is_empty() || rest.starts_with(char::is_whitespace))).then_some(key)
}
