//! Pure. A trace as a picture: DOT for Graphviz, and an SVG of lanes in which position, not motion, tells the story.

use std::fmt::Write as _;

use super::{Hop, Trace, WayTraced};

/// A graph for Graphviz.
pub fn dot(trace: &Trace) -> String {
    let mut out = String::from("digraph trace {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n");
    let _ = writeln!(out, "  label={};", quoted(&format!("{} to {}/{}", trace.from, trace.to, trace.protocol)));
    if let Some(way) = trace.ways.first() {
        for hop in hops(way) {
            let label = format!(
                "{} {}\n{} -> {}\n{}",
                hop.number,
                lane_of(hop),
                hop.after.source,
                hop.after.destination,
                hop.action
            );
            let colour = if hop.before == hop.after { "" } else { ", style=filled, fillcolor=\"#ffe08a\"" };
            let _ = writeln!(out, "  h{} [label={}{colour}];", hop.number, quoted(&label));
        }
        for (direction, list) in [("", &way.forward), (" [style=dashed]", &way.reply)] {
            for pair in list.windows(2) {
                let _ = writeln!(out, "  h{} -> h{}{direction};", pair[0].number, pair[1].number);
            }
        }
        if let (Some(last), Some(first)) = (way.forward.last(), way.reply.first()) {
            let _ = writeln!(out, "  h{} -> h{} [style=dashed];", last.number, first.number);
        }
    }
    out.push_str("}\n");
    out
}

fn hops(way: &WayTraced) -> impl Iterator<Item = &Hop> {
    way.forward.iter().chain(&way.reply)
}

fn lane_of(hop: &Hop) -> String {
    match &hop.node {
        Some(node) => format!("{node}: {}", hop.place),
        None => hop.place.clone(),
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

const LANE: usize = 250;
const ROW: usize = 64;
const TOP: usize = 70;

/// Lanes from left to right, hops from top to bottom.
pub fn svg(trace: &Trace) -> String {
    let Some(way) = trace.ways.first() else { return String::new() };
    let mut lanes: Vec<String> = Vec::new();
    let lane_name = |hop: &Hop| match &hop.node {
        Some(node) if hop.place.starts_with("pod ") => format!("{} on {node}", hop.place),
        Some(node) => format!("node {node}"),
        None if hop.place.starts_with("wire") => "wire".to_owned(),
        None => hop.place.clone(),
    };
    for hop in hops(way) {
        let name = lane_name(hop);
        if !lanes.contains(&name) {
            lanes.push(name);
        }
    }
    let rows = hops(way).count();
    let (width, height) = (lanes.len() * LANE + 20, TOP + rows * ROW + 20);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"11\" role=\"img\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escaped(&format!("{} to {}/{}: {}", trace.from, trace.to, trace.protocol, trace.outcome))
    );
    let _ = writeln!(
        out,
        "<text x=\"10\" y=\"20\" font-size=\"14\">{}</text>",
        escaped(&format!("{} to {}/{}: {}", trace.from, trace.to, trace.protocol, trace.outcome))
    );
    for (number, lane) in lanes.iter().enumerate() {
        let x = 10 + number * LANE;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"32\" width=\"{}\" height=\"{}\" fill=\"#f5f6f8\" stroke=\"#c9ccd3\"/><text x=\"{}\" y=\"50\" font-weight=\"bold\">{}</text>",
            LANE - 10,
            height - 42,
            x + 8,
            escaped(lane)
        );
    }
    let centre = |hop: &Hop| {
        let lane = lanes.iter().position(|lane| *lane == lane_name(hop)).unwrap_or(0);
        10 + lane * LANE + (LANE - 10) / 2
    };
    let all: Vec<&Hop> = hops(way).collect();
    for (row, pair) in all.windows(2).enumerate() {
        let dash = if row + 1 >= way.forward.len() { " stroke-dasharray=\"4 3\"" } else { "" };
        let _ = writeln!(
            out,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#5b6270\"{dash}/>",
            centre(pair[0]),
            TOP + row * ROW + 46,
            centre(pair[1]),
            TOP + (row + 1) * ROW
        );
    }
    for (row, hop) in all.iter().enumerate() {
        card(&mut out, hop, centre(hop), TOP + row * ROW);
    }
    out.push_str("</svg>\n");
    out
}

fn card(out: &mut String, hop: &Hop, centre: usize, y: usize) {
    let x = centre - (LANE - 26) / 2;
    let (source, destination) = hop.changed();
    let field = |text: String, changed: bool| {
        let text = escaped(&text);
        if changed { format!("<tspan font-weight=\"bold\" fill=\"#9a3b00\">*{text}*</tspan>") } else { text }
    };
    let fill = if source || destination { "#ffe9b0" } else { "#ffffff" };
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"46\" rx=\"4\" fill=\"{fill}\" stroke=\"#8a909c\"/>\
         <text x=\"{tx}\" y=\"{}\">{}. {}</text><text x=\"{tx}\" y=\"{}\">{} &#8594;</text><text x=\"{tx}\" y=\"{}\">{}</text></g>",
        escaped(&format!("{}\n{}", hop.action, hop.rules.join("\n"))),
        LANE - 26,
        y + 13,
        hop.number,
        escaped(&short(&hop.action)),
        y + 27,
        field(hop.after.source.to_string(), source),
        y + 40,
        field(hop.after.destination.to_string(), destination),
        tx = x + 6,
    );
}

fn short(text: &str) -> String {
    let most = 32;
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
