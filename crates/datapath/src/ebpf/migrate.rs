//! What the programs remember goes over from maps of an older layout, or of other sizes, to those of this daemon: sockets still see
//! the address that they asked for, and what was counted is not lost. Tables are not brought over: they are filled from the plan.
//!
//! It is done before the programs are exchanged, and once more after it for what was noted meanwhile; what the new maps have by then is
//! newer, and stays.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object};
use tracing::{debug, warn};

use super::kernel::READ_BATCH;

/// Since this layout the maps below mean what they mean now, where keys and values have the same sizes.
const SINCE: u32 = 2;
/// What is brought over.
const REMEMBERED: [&str; 5] = ["peers", "flows", "affinities", "counters", "left_out"];

/// From all other maps that are pinned. What cannot be read is left: Services work without it.
pub(super) fn bring_over(pins: &Path, mine: &Path, prefix: &str, object: &Object) {
    for from in others(pins, mine, prefix) {
        for name in REMEMBERED {
            let path = from.join(name);
            match copy(&path, name, object) {
                Ok(count) => debug!(path = %path.display(), count, "what was remembered goes over to new maps"),
                Err(error) => warn!(path = %path.display(), %error, "what was remembered cannot be brought over"),
            }
        }
    }
}

/// Whether there are other maps than those of this daemon.
pub(super) fn has_others(pins: &Path, mine: &Path, prefix: &str) -> bool {
    !all_others(pins, mine, prefix).is_empty()
}

/// Directories of maps, of layouts that remember as this one does.
fn others(pins: &Path, mine: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = all_others(pins, mine, prefix).into_iter();
    let remembers =
        |(path, rest): (PathBuf, String)| Some(path).filter(|_| layout_of(&rest).is_some_and(|layout| layout >= SINCE));
    all.filter_map(remembers).collect()
}

/// With what their names say behind the prefix.
fn all_others(pins: &Path, mine: &Path, prefix: &str) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(pins).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = entries.filter(|path| path != mine).filter_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((path, name.strip_prefix(prefix)?.to_owned()))
    });
    named.collect()
}

/// Of `3-131072-1048576-65536`.
fn layout_of(name: &str) -> Option<u32> {
    name.split('-').next()?.parse().ok()
}

/// How many entries were new.
fn copy(path: &Path, name: &str, object: &Object) -> libbpf_rs::Result<usize> {
    let Some(to) = object.maps().find(|map| map.name() == name) else { return Ok(0) };
    if !path.exists() {
        return Ok(0);
    }
    let from = MapHandle::from_pinned_path(path)?;
    if (from.key_size(), from.value_size(), from.map_type()) != (to.key_size(), to.value_size(), to.map_type()) {
        return Ok(0);
    }
    let mut count = 0;
    for (key, value) in from.lookup_batch(READ_BATCH.min(from.max_entries()), MapFlags::ANY, MapFlags::ANY)? {
        match to.update(&key, &value, MapFlags::NO_EXIST) {
            Ok(()) => count += 1,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_maps_names_its_layout() {
        assert_eq!(layout_of("3-131072-1048576-65536"), Some(3));
        assert_eq!(layout_of("3"), Some(3));
        assert_eq!(layout_of("three-1"), None);
        assert_eq!(layout_of(""), None);
    }
}
