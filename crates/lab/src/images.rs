//! Pure. What an image's name means: a program of this machine. There is no registry and no container runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The echo server's image, which is built in.
pub const ECHO: &str = "signpost/echo";
/// The name server's, which is as well.
pub const DNS: &str = "signpost/dns";

/// The images of a lab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Images {
    programs: BTreeMap<String, PathBuf>,
}

/// What an image runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// The echo server.
    Echo,
    /// The cluster's name server.
    Dns,
    /// A program of this machine.
    Program(PathBuf),
}

impl Images {
    /// From names to programs.
    pub fn new(programs: BTreeMap<String, PathBuf>) -> Images {
        Images { programs }
    }

    /// What an image of this name runs. A mapping of the very name is taken first, then one of the name without its
    /// tag and digest, then the built-in ones.
    pub fn find(&self, name: &str) -> Option<Image> {
        let bare = bare_name(name);
        if let Some(path) = self.programs.get(name).or_else(|| self.programs.get(bare)) {
            return Some(Image::Program(path.clone()));
        }
        match bare.strip_prefix("docker.io/").unwrap_or(bare) {
            ECHO => Some(Image::Echo),
            DNS => Some(Image::Dns),
            _ => None,
        }
    }

    /// All programs, for a pod's view of the machine.
    pub fn programs(&self) -> BTreeSet<&Path> {
        self.programs.values().map(PathBuf::as_path).collect()
    }
}

/// What `kubectl describe pod` tells about an image that means nothing here.
pub fn unmapped(name: &str) -> String {
    format!(
        "Failed to pull image {name:?}: the lab pulls nothing. Say which program of this machine it stands for: \
         signpost lab up --image {}=/path/to/program. Built in: {ECHO}, {DNS}",
        bare_name(name)
    )
}

fn bare_name(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    match name.rsplit_once(':') {
        Some((bare, tag)) if !tag.contains('/') => bare, // else the colon belongs to a registry's port
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_with_and_without_tag() {
        let images = Images::new(BTreeMap::from([
            ("nginx".to_owned(), PathBuf::from("/usr/sbin/nginx")),
            ("nginx:old".to_owned(), PathBuf::from("/opt/nginx")),
            ("registry.example:5000/web".to_owned(), PathBuf::from("/opt/web")),
        ]));
        let program = |path: &str| Some(Image::Program(path.into()));
        assert_eq!(images.find("nginx"), program("/usr/sbin/nginx"));
        assert_eq!(images.find("nginx:1.29"), program("/usr/sbin/nginx"));
        assert_eq!(images.find("nginx:old"), program("/opt/nginx"));
        assert_eq!(images.find("registry.example:5000/web@sha256:00"), program("/opt/web"));
        assert_eq!(images.find("registry.example:5000/web"), program("/opt/web"));
        assert_eq!(images.find("redis"), None);
        for echo in ["signpost/echo", "signpost/echo:latest", "docker.io/signpost/echo"] {
            assert_eq!(images.find(echo), Some(Image::Echo), "{echo}");
        }
        assert_eq!(images.find("signpost/dns:v1"), Some(Image::Dns));
        assert!(unmapped("redis:7").contains("--image redis=/path"));
    }
}
