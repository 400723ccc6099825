//! What a person has: `signpost lab`, `kubectl`, and a name for the lab.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use signpost_lab::cgroup::Cgroup;
use signpost_lab::state::LABS;

const SIGNPOST: &str = env!("CARGO_BIN_EXE_signpost");

/// A name that is taken down at the end of its test, whatever happened.
pub struct Name(pub String);

impl Name {
    pub fn new(what: &str) -> Name {
        Name(format!("t-{what}-{}", std::process::id()))
    }

    /// `signpost lab ACTION --name THIS ...`
    pub fn lab(&self, arguments: &[&str]) -> Output {
        let (action, rest) = arguments.split_first().unwrap();
        Command::new(SIGNPOST).args(["lab", action, "--name", &self.0]).args(rest).output().unwrap()
    }

    /// What `kubectl` says.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with(arguments, "")
    }

    /// The same, with an input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> String {
        let kubeconfig = well(self.lab(&["kubeconfig"]));
        let mut command = Command::new("kubectl");
        command.args(arguments).env("KUBECONFIG", kubeconfig.trim());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        well(child.wait_with_output().unwrap())
    }

    pub fn leaves_nothing(&self) {
        assert!(!Path::new(LABS).join(&self.0).exists(), "state of {}", self.0);
        assert!(!Path::new(LABS).join(format!("{}.lock", self.0)).exists(), "lock of {}", self.0);
        assert!(!Cgroup::labs().unwrap().child(&self.0).path().exists(), "cgroup of {}", self.0);
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.lab(&["down"]);
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The output of what must have gone well.
pub fn well(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}
