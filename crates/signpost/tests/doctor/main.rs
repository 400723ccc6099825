//! `signpost doctor` and `signpost trace` as programs: exit statuses, forms, bad input, rights, the plugin of kubectl, and
//! packets that are really sent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod lab;
mod offline;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program, without anything of its surroundings that says which cluster is meant.
fn signpost(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_signpost"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["KUBECONFIG", "SIGNPOST_LAB", "KUBERNETES_SERVICE_HOST", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.env("HOME", "/nowhere");
    command
}

fn run(arguments: &[&str]) -> Output {
    signpost(arguments).output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
