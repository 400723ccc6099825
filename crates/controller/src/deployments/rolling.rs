//! Pure. The numbers of a rolling update: how large each ReplicaSet may be now.
//!
//! Two bounds hold at every step: never more pods than `replicas + maxSurge`, and no pod that is available is taken
//! away while that leaves fewer than `replicas - maxUnavailable`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, RollingUpdateDeployment};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::revision::{DESIRED, MAX, annotation};
use crate::replica_sets::plan::replicas as set_replicas;

/// New sizes, for the sets that change.
pub type Sizes = Vec<(Arc<ReplicaSet>, i32)>;

/// `spec.replicas`; 1 if it is not set.
pub fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().map_or(0, |spec| spec.replicas.unwrap_or(1)).max(0)
}

/// Whether old pods go before new ones come.
pub fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

fn parameters(deployment: &Deployment) -> RollingUpdateDeployment {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default()
}

/// So many pods more than `replicas` there may be.
pub fn max_surge(deployment: &Deployment) -> i32 {
    if is_recreate(deployment) { 0 } else { bounds(deployment).0 }
}

/// So many of `replicas` may be unavailable.
pub fn max_unavailable(deployment: &Deployment) -> i32 {
    if is_recreate(deployment) || replicas(deployment) == 0 {
        0
    } else {
        bounds(deployment).1.min(replicas(deployment))
    }
}

/// Surge and unavailability. Percentages of surge are rounded up, of unavailability down; both zero would stand still.
fn bounds(deployment: &Deployment) -> (i32, i32) {
    let replicas = replicas(deployment);
    let parameters = parameters(deployment);
    let quarter = IntOrString::String("25%".to_owned());
    let surge = scaled(parameters.max_surge.as_ref().unwrap_or(&quarter), replicas, true);
    let unavailable = scaled(parameters.max_unavailable.as_ref().unwrap_or(&quarter), replicas, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

fn scaled(value: &IntOrString, of: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
            let hundredths = i64::from(percent) * i64::from(of);
            let scaled = if round_up { (hundredths + 99) / 100 } else { hundredths / 100 };
            i32::try_from(scaled).unwrap_or(i32::MAX)
        }
    }
}

/// Available pods, as far as the set still asks for them: a status may lag behind a set that has just been shrunk.
fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0).min(set_replicas(set))
}

/// Pods that the sets ask for.
pub fn asked<'a>(sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>) -> i32 {
    sets.into_iter().map(|set| set_replicas(set)).sum()
}

/// Pods of the sets that are available.
pub fn available_in<'a>(sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>) -> i32 {
    sets.into_iter().map(|set| available(set)).sum()
}

/// How large a new set of this template may be at once.
pub fn new_set_size(deployment: &Deployment, current: i32, old: &[Arc<ReplicaSet>]) -> i32 {
    let wanted = replicas(deployment);
    if is_recreate(deployment) {
        return wanted;
    }
    if current >= wanted {
        return wanted;
    }
    let room = wanted + max_surge(deployment) - (current + asked(old));
    current + room.clamp(0, wanted - current)
}

/// How far the old sets may shrink now.
pub fn old_set_sizes(deployment: &Deployment, new: &Arc<ReplicaSet>, old: &[Arc<ReplicaSet>]) -> Sizes {
    let all = asked(old) + set_replicas(new);
    let least = replicas(deployment) - max_unavailable(deployment);
    // Pods of the new set that are not available yet take their share of what may be unavailable.
    let mut room = all - least - (set_replicas(new) - available(new)).max(0);
    if room <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<(Arc<ReplicaSet>, i32)> = old.iter().map(|set| (set.clone(), set_replicas(set))).collect();
    // Old pods that serve nobody go first.
    for (set, size) in &mut sizes {
        let idle = (*size - available(set)).clamp(0, room);
        *size -= idle;
        room -= idle;
    }
    // Then available ones, as far as enough of them stay. A set's own choice takes unavailable pods first.
    let mut surplus = (available_in(old) + available(new) - least).clamp(0, room);
    for (_, size) in &mut sizes {
        let going = (*size).min(surplus);
        *size -= going;
        surplus -= going;
    }
    sizes.retain(|(set, size)| set_replicas(set) != *size);
    sizes
}

/// Whether the Deployment was scaled since its sets were last sized.
pub fn was_scaled(deployment: &Deployment, sets: &[&Arc<ReplicaSet>]) -> bool {
    let wanted = replicas(deployment);
    sets.iter().filter(|set| set_replicas(set) > 0).any(|set| {
        let desired = annotation(&set.metadata, DESIRED).and_then(|text| text.parse::<i32>().ok());
        desired.is_some_and(|desired| desired != wanted)
    })
}

/// Sizes after the Deployment itself was scaled: one set takes it all; several, in the middle of an update, share it in
/// proportion to their sizes.
pub fn scaled_sizes(deployment: &Deployment, new: Option<&Arc<ReplicaSet>>, old: &[Arc<ReplicaSet>]) -> Sizes {
    let wanted = replicas(deployment);
    let active: Vec<&Arc<ReplicaSet>> = old.iter().chain(new).filter(|set| set_replicas(set) > 0).collect();
    if let [] | [_] = active[..] {
        let newest = old.iter().max_by_key(|set| set.metadata.creation_timestamp.clone());
        let only = active.first().copied().or(new).or(newest);
        return only.map(|set| (set.clone(), wanted)).into_iter().collect();
    }
    if new.is_some_and(|new| is_saturated(deployment, new)) {
        return old.iter().filter(|set| set_replicas(set) > 0).map(|set| (set.clone(), 0)).collect();
    }
    if is_recreate(deployment) { Vec::new() } else { shared(deployment, active) }
}

fn is_saturated(deployment: &Deployment, new: &ReplicaSet) -> bool {
    let wanted = replicas(deployment);
    let desired = annotation(&new.metadata, DESIRED).and_then(|text| text.parse::<i32>().ok());
    set_replicas(new) == wanted && desired == Some(wanted) && available(new) == wanted
}

fn shared(deployment: &Deployment, mut active: Vec<&Arc<ReplicaSet>>) -> Sizes {
    let wanted = replicas(deployment);
    let most = if wanted > 0 { wanted + max_surge(deployment) } else { 0 };
    let to_add = most - asked(active.iter().copied());
    // Growing starts with the newest of the largest, shrinking with the oldest.
    active.sort_by(|a, b| {
        let age = a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp);
        set_replicas(b).cmp(&set_replicas(a)).then(if to_add > 0 { age.reverse() } else { age })
    });
    let mut added = 0;
    let mut sizes: Sizes = active
        .into_iter()
        .map(|set| {
            let size = set_replicas(set);
            let share = if to_add == 0 { 0 } else { proportion(deployment, set, most) };
            let left = to_add - added;
            let share = if to_add > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
            added += share;
            (set.clone(), size + share)
        })
        .collect();
    if let Some((_, size)) = sizes.first_mut() {
        *size = (*size + to_add - added).max(0);
    }
    sizes
}

/// By how much a set would change if all changed alike.
fn proportion(deployment: &Deployment, set: &ReplicaSet, most: i32) -> i32 {
    let size = set_replicas(set);
    if replicas(deployment) == 0 {
        return -size;
    }
    let before = annotation(&set.metadata, MAX).and_then(|text| text.parse::<i32>().ok()).filter(|most| *most > 0);
    let before = before.or(deployment.status.as_ref().and_then(|status| status.replicas)).unwrap_or(0).max(1);
    let rounded = (i64::from(size) * i64::from(most) * 2 + i64::from(before)) / (i64::from(before) * 2);
    i32::try_from(rounded).unwrap_or(i32::MAX) - size
}
