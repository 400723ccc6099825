//! Programs that pretend to be others, for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A shell script of that name in a folder. Another process writes it: were it open here while some other test starts a
/// child, running it could fail with "text file busy".
pub fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let written = Command::new("sh").args(["-c", write, "sh", script]).arg(&path).status();
    assert!(written.is_ok_and(|status| status.success()), "{} cannot be written", path.display());
    path
}
