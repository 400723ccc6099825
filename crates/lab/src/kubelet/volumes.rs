//! A pod's volumes: `emptyDir` in memory, ConfigMaps and Secrets as files in the pod's folder of the lab's state. All
//! containers of a pod share one view of the machine, so what one mounts the others see at the same place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, KeyToPath, Pod, Volume, VolumeMount};
use serde_json::Value;

use super::sources::{NotFound, Origin, Sources};
use crate::sandbox::{Mount, MountSource};

/// The size of an `emptyDir` that names none.
const EMPTY_BYTES: u64 = 64 << 20;
/// The size of an `emptyDir` at most: it is in the machine's memory.
const MOST_BYTES: u64 = 256 << 20;
/// Where no volume can be: the pod's view itself is there.
const TAKEN: [&str; 4] = ["/proc", "/sys", "/dev", "/run/signpost"];

/// Why a pod has not the volumes it asks for.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The lab has no such thing; waiting does not help.
    #[error("{0}")]
    Unsupported(String),
    /// Something is not there, yet.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
    Missing {
        /// The volume's name.
        volume: String,
        /// What is not there.
        problem: String,
    },
    /// The API did not answer.
    #[error("cannot read what volumes hold: {0}")]
    Api(#[from] kube::Error),
    /// A file could not be written.
    #[error("cannot write what volumes hold: {0}")]
    Write(#[from] io::Error),
}

/// What a volume is made from.
#[derive(Debug, Clone, PartialEq)]
enum Content {
    Empty { bytes: u64 },
    Files { origin: Origin, name: String, items: Option<Vec<KeyToPath>>, mode: i32, optional: bool },
}

/// Writes the files of a pod's volumes below `folder` and gives what its containers mount.
///
/// # Errors
/// Something is not there, or not to be had in the lab.
pub async fn mounts(client: &kube::Client, pod: &Pod, folder: &Path) -> Result<Vec<Mount>, VolumeError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let volumes = spec.volumes.unwrap_or_default();
    let contents: Vec<(String, Content)> =
        volumes.iter().map(|volume| Ok((volume.name.clone(), content(volume)?))).collect::<Result<_, VolumeError>>()?;
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mounts = planned(&contents, containers, folder)?;
    let wanted: BTreeSet<(Origin, String)> = contents
        .iter()
        .filter_map(|(_, content)| match content {
            Content::Files { origin, name, .. } => Some((*origin, name.clone())),
            Content::Empty { .. } => None,
        })
        .collect();
    let sources = Sources::read(client, pod.metadata.namespace.as_deref().unwrap_or_default(), wanted).await?;
    for (index, (volume, content)) in contents.iter().enumerate() {
        let missing = |problem: String| VolumeError::Missing { volume: volume.clone(), problem };
        if let Some(files) = files(content, &sources).map_err(missing)? {
            write(&place(folder, index), &files)?;
        }
    }
    check_parts(&mounts)?;
    Ok(mounts)
}

fn place(folder: &Path, index: usize) -> PathBuf {
    folder.join("volumes").join(index.to_string())
}

fn content(volume: &Volume) -> Result<Content, VolumeError> {
    if let Some(empty) = &volume.empty_dir {
        let limit = empty.size_limit.as_ref().and_then(|limit| bytes(&limit.0));
        return Ok(Content::Empty { bytes: limit.unwrap_or(EMPTY_BYTES).clamp(1, MOST_BYTES) });
    }
    if let Some(map) = volume.config_map.clone() {
        return Ok(Content::Files {
            origin: Origin::ConfigMap,
            name: map.name,
            items: map.items,
            mode: map.default_mode.unwrap_or(0o644),
            optional: map.optional.unwrap_or(false),
        });
    }
    if let Some(secret) = volume.secret.clone() {
        return Ok(Content::Files {
            origin: Origin::Secret,
            name: secret.secret_name.unwrap_or_default(),
            items: secret.items,
            mode: secret.default_mode.unwrap_or(0o644),
            optional: secret.optional.unwrap_or(false),
        });
    }
    let kind = match serde_json::to_value(volume) {
        Ok(Value::Object(fields)) => fields.keys().find(|key| *key != "name").cloned(),
        _ => None,
    };
    Err(VolumeError::Unsupported(format!(
        "volume {:?}: the lab has emptyDir, configMap and secret, not {}",
        volume.name,
        kind.unwrap_or_else(|| "a volume without a source".to_owned())
    )))
}

/// A quantity of bytes, as `64Mi`; `None`: not understood.
fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(digits);
    let factor = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn planned<'a>(
    contents: &[(String, Content)],
    containers: impl Iterator<Item = &'a Container>,
    folder: &Path,
) -> Result<Vec<Mount>, VolumeError> {
    let mut by_target: BTreeMap<PathBuf, Mount> = BTreeMap::new();
    for container in containers {
        let unsupported = |what: String| VolumeError::Unsupported(format!("container {:?}: {what}", container.name));
        if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
            return Err(unsupported("the lab has no volumeDevices".to_owned()));
        }
        for mount in container.volume_mounts.iter().flatten() {
            let made = planned_one(contents, mount, folder).map_err(unsupported)?;
            match by_target.get_mut(&made.target) {
                None => {
                    by_target.insert(made.target.clone(), made);
                }
                Some(known) if known.source == made.source && known.part == made.part => {
                    known.read_only &= made.read_only;
                }
                Some(_) => {
                    let target = made.target.display();
                    return Err(unsupported(format!(
                        "another container mounts another volume at {target}; the lab's containers of a pod share one view"
                    )));
                }
            }
        }
    }
    Ok(by_target.into_values().collect()) // outer places come before inner ones
}

fn planned_one(contents: &[(String, Content)], mount: &VolumeMount, folder: &Path) -> Result<Mount, String> {
    let found = contents.iter().enumerate().find(|(_, (name, _))| *name == mount.name);
    let (index, (name, content)) = found.ok_or_else(|| format!("the pod has no volume {:?}", mount.name))?;
    if mount.sub_path_expr.as_ref().is_some_and(|expression| !expression.is_empty()) {
        return Err("the lab has subPath, not subPathExpr".to_owned());
    }
    let target = Path::new("/").join(&mount.mount_path);
    let plain = target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !plain || target == Path::new("/") || TAKEN.iter().any(|taken| target.starts_with(taken)) {
        return Err(format!("the lab mounts no volume at {:?}", mount.mount_path));
    }
    let part = match mount.sub_path.as_deref() {
        None | Some("") => None,
        Some(part) => Some(relative(part).ok_or_else(|| format!("subPath {part:?} is not below the volume"))?),
    };
    let (source, read_only) = match content {
        Content::Empty { bytes } => {
            (MountSource::Memory { name: name.replace('/', "-"), bytes: *bytes }, mount.read_only.unwrap_or(false))
        }
        Content::Files { .. } => (MountSource::Directory(place(folder, index)), true),
    };
    Ok(Mount { source, part, target: target.components().collect(), read_only })
}

/// A path of plain names.
fn relative(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && path.components().next().is_some()).then(|| path.components().collect())
}

struct File<'a> {
    path: PathBuf,
    mode: u32,
    text: &'a [u8],
}

/// The files of a volume; `None`: it has none of its own.
fn files<'a>(content: &Content, sources: &'a Sources) -> Result<Option<Vec<File<'a>>>, String> {
    let Content::Files { origin, name, items, mode, optional } = content else { return Ok(None) };
    let data = match sources.find(*origin, name) {
        Ok(data) => data,
        Err(NotFound { .. }) if *optional => return Ok(Some(Vec::new())),
        Err(error) => return Err(error.to_string()),
    };
    let file = |path: &str, mode: i32, text: &'a Vec<u8>| {
        let path = relative(path).ok_or_else(|| format!("{path:?} is no path below the volume"))?;
        Ok(File { path, mode: u32::try_from(mode & 0o777).unwrap_or(0o644), text })
    };
    let Some(items) = items else {
        return data.iter().map(|(key, text)| file(key, *mode, text)).collect::<Result<_, _>>().map(Some);
    };
    let mut all = Vec::new();
    for item in items {
        match data.get(&item.key) {
            Some(text) => all.push(file(&item.path, item.mode.unwrap_or(*mode), text)?),
            None if *optional => {}
            None => {
                let origin = origin.to_string().to_ascii_lowercase();
                return Err(format!("{origin} references non-existent {origin} key: {}", item.key));
            }
        }
    }
    Ok(Some(all))
}

fn write(folder: &Path, files: &[File<'_>]) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(folder)?,
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for file in files {
        let path = folder.join(&file.path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, file.text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

/// A part of a volume of files must be one of them.
fn check_parts(mounts: &[Mount]) -> Result<(), VolumeError> {
    for mount in mounts {
        if let (MountSource::Directory(folder), Some(part)) = (&mount.source, &mount.part)
            && !folder.join(part).exists()
        {
            let problem = format!("it has no {part:?}, which is mounted at {}", mount.target.display());
            return Err(VolumeError::Missing { volume: part.display().to_string(), problem });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(spec: Value) -> Result<Vec<Mount>, String> {
        let spec: k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(spec).unwrap();
        let contents =
            spec.volumes.iter().flatten().map(|v| Ok((v.name.clone(), content(v)?))).collect::<Result<Vec<_>, _>>();
        let contents = contents.map_err(|error: VolumeError| error.to_string())?;
        planned(&contents, spec.containers.iter(), Path::new("/state")).map_err(|error| error.to_string())
    }

    fn one(volume: Value, mount: Value) -> Result<Vec<Mount>, String> {
        plan(json!({"volumes": [volume], "containers": [{"name": "c", "volumeMounts": [mount]}]}))
    }

    #[test]
    fn what_the_lab_has_not_is_named() {
        let data = json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}});
        let error = one(json!({"name": "v", "hostPath": {"path": "/etc"}}), json!({"name": "v", "mountPath": "/a"}));
        assert!(error.unwrap_err().contains("not hostPath"));
        for target in ["/", "/proc/1", "/dev/shm", "/a/../etc", "/run/signpost/bin"] {
            assert!(one(data.clone(), json!({"name": "v", "mountPath": target})).is_err(), "{target}");
        }
        assert!(one(data.clone(), json!({"name": "v", "mountPath": "/a", "subPath": "../b"})).is_err());
        assert!(one(data.clone(), json!({"name": "v", "mountPath": "/a", "subPathExpr": "$(A)"})).is_err());
        let mounts = one(data, json!({"name": "v", "mountPath": "/a/", "subPath": "b"})).unwrap();
        let source = MountSource::Memory { name: "v".into(), bytes: 1 << 20 };
        assert_eq!(mounts, [Mount { source, part: Some("b".into()), target: "/a".into(), read_only: false }]);
    }

    #[test]
    fn files_are_those_that_items_name_with_their_modes() {
        let data = [("a", "1"), ("b", "2")].map(|(key, text)| (key.to_owned(), text.as_bytes().to_vec()));
        let sources = Sources::of([((Origin::Secret, "s".to_owned()), data.into_iter().collect())]);
        let volume =
            |secret: Value| content(&serde_json::from_value(json!({"name": "v", "secret": secret})).unwrap()).unwrap();
        let names = |secret: Value| -> Result<Vec<(String, u32)>, String> {
            let files = files(&volume(secret), &sources)?.unwrap();
            Ok(files.iter().map(|file| (file.path.display().to_string(), file.mode)).collect())
        };
        assert_eq!(
            names(json!({"secretName": "s", "defaultMode": 256})).unwrap(),
            [("a".into(), 0o400), ("b".into(), 0o400)]
        );
        let items = json!([{"key": "b", "path": "sub/b.txt"}]);
        assert_eq!(names(json!({"secretName": "s", "items": items})).unwrap(), [("sub/b.txt".into(), 0o644)]);
        let items = json!([{"key": "b", "path": "../b"}]);
        assert!(names(json!({"secretName": "s", "items": items})).is_err());
        assert_eq!(names(json!({"secretName": "none"})).unwrap_err(), "secret \"none\" not found");
        assert!(names(json!({"secretName": "none", "optional": true})).unwrap().is_empty());
        let items = json!([{"key": "c", "path": "c"}]);
        assert!(names(json!({"secretName": "s", "items": items})).unwrap_err().contains("non-existent secret key: c"));
    }
}
