//! What the controllers know of one kind: every object, findable by name and by index.
//!
//! Filled from two sides: the watch ([`crate::feed`]) and the answers to our own writes ([`crate::write`]). The second
//! makes a controller see its own work at once, so that a lagging watch never makes it do the same thing twice; resource
//! versions decide which of the two is newer (they are comparable numbers, KEP-5504).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::Resource;
use signpost_core::object::ObjectName;

/// A property by which objects of a kind are found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Index {
    /// Objects of a namespace with a label.
    Label(Arc<str>, Arc<str>, Arc<str>),
    /// Services of a namespace whose selector begins with this pair.
    Selector(Arc<str>, Arc<str>, Arc<str>),
    /// Objects that name this uid as an owner.
    Owner(Arc<str>),
    /// Pods on this node; pods without one under the empty name.
    Node(Arc<str>),
    /// Services that have this load-balancer address.
    Ingress(IpAddr),
    /// Services with this key for sharing a load-balancer address.
    SharingKey(Arc<str>),
    /// Services that are of type LoadBalancer, or have an address as if they were.
    LoadBalancer,
}

/// An object that can be cached.
pub trait Cached: Resource<DynamicType = ()> + Send + Sync + 'static {
    /// What it is to be found by.
    fn indices(&self) -> Vec<Index>;
}

/// How a cached object changed. Never both `None`.
#[derive(Debug)]
pub struct Transition<K> {
    /// Before, unless it is new.
    pub old: Option<Arc<K>>,
    /// Now, unless it is gone.
    pub new: Option<Arc<K>>,
}

/// All objects of one kind.
pub struct Cache<K> {
    inner: RwLock<Inner<K>>,
}

struct Inner<K> {
    objects: BTreeMap<ObjectName, Arc<K>>,
    index: BTreeMap<Index, BTreeSet<ObjectName>>,
    /// Uids of objects that we deleted and whose deletion the watch has not told yet.
    deleted: BTreeSet<String>,
    /// The revision up to which the watch has told everything; `None` before the first list.
    seen: Option<u64>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        let inner = Inner { objects: BTreeMap::new(), index: BTreeMap::new(), deleted: BTreeSet::new(), seen: None };
        Cache { inner: RwLock::new(inner) }
    }
}

impl<K: Cached> Cache<K> {
    /// The object of this name.
    pub fn get(&self, name: &ObjectName) -> Option<Arc<K>> {
        self.read().objects.get(name).cloned()
    }

    /// Whether an object of this uid is there.
    pub fn has(&self, name: &ObjectName, uid: &str) -> bool {
        self.read().objects.get(name).is_some_and(|object| uid_of(object.as_ref()) == uid)
    }

    /// The objects of one index entry, by name.
    pub fn select(&self, index: &Index) -> Vec<Arc<K>> {
        let inner = self.read();
        let names = inner.index.get(index).into_iter().flatten();
        names.filter_map(|name| inner.objects.get(name)).cloned().collect()
    }

    /// How many objects an index entry has.
    pub fn count(&self, index: &Index) -> usize {
        self.read().index.get(index).map_or(0, BTreeSet::len)
    }

    /// All objects of a namespace, by name.
    pub fn in_namespace(&self, namespace: &Arc<str>) -> Vec<Arc<K>> {
        let first = ObjectName { namespace: namespace.clone(), name: "".into() };
        let inner = self.read();
        let range = inner.objects.range(first..).take_while(|(name, _)| name.namespace == *namespace);
        range.map(|(_, object)| object.clone()).collect()
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The revision up to which the watch has told everything; `None` before the first list.
    pub fn seen(&self) -> Option<u64> {
        self.read().seen
    }

    /// The watch told of everything up to this revision, and the queues know.
    pub fn set_seen(&self, revision: u64) {
        let mut inner = self.write();
        inner.seen = Some(inner.seen.map_or(revision, |seen| seen.max(revision)));
    }

    /// The watch told of an object.
    pub fn apply(&self, object: K) -> Option<Transition<K>> {
        self.write().apply(object)
    }

    /// A write of ours was answered with this object. Nothing changes if the watch has already told as much or more.
    pub fn absorb(&self, object: K) -> Option<Transition<K>> {
        let mut inner = self.write();
        if inner.seen.is_some_and(|seen| revision_of(&object) <= seen) { None } else { inner.apply(object) }
    }

    /// The watch told that an object is gone.
    pub fn remove(&self, object: &K) -> Option<Transition<K>> {
        let mut inner = self.write();
        inner.deleted.remove(uid_of(object));
        inner.remove(&name_of(object), uid_of(object))
    }

    /// The API told us that an object is gone, by deleting it for us or by not finding it.
    pub fn absorb_deletion(&self, object: &K) -> Option<Transition<K>> {
        let mut inner = self.write();
        let transition = inner.remove(&name_of(object), uid_of(object));
        if transition.is_some() {
            inner.deleted.insert(uid_of(object).to_owned());
        }
        transition
    }

    /// A new list, as of `revision`. What our own writes made after it stays.
    ///
    /// A list that is older than what the watch has told means that the API lost its past (a backup was restored): then
    /// the list is all there is.
    pub fn replace(&self, list: Vec<K>, revision: u64) -> Vec<Transition<K>> {
        let mut inner = self.write();
        let lost = inner.seen.is_some_and(|seen| seen > revision);
        if lost {
            inner.deleted.clear();
        }
        inner.seen = Some(revision);
        let listed: BTreeSet<String> = list.iter().map(|object| uid_of(object).to_owned()).collect();
        inner.deleted.retain(|uid| listed.contains(uid));
        let gone: Vec<Arc<K>> = inner
            .objects
            .values()
            .filter(|object| {
                let newer = revision_of(object.as_ref()) > revision;
                if lost {
                    newer || !listed.contains(uid_of(object.as_ref()))
                } else {
                    !newer && !listed.contains(uid_of(object.as_ref()))
                }
            })
            .cloned()
            .collect();
        let mut transitions: Vec<_> =
            gone.iter().filter_map(|object| inner.remove(&name_of(object.as_ref()), uid_of(object.as_ref()))).collect();
        transitions.extend(list.into_iter().filter_map(|object| inner.apply(object)));
        transitions
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Cached> Inner<K> {
    fn apply(&mut self, object: K) -> Option<Transition<K>> {
        if self.deleted.contains(uid_of(&object)) {
            return None;
        }
        let name = name_of(&object);
        let old = self.objects.get(&name).cloned();
        if old.as_deref().is_some_and(|old| revision_of(old) >= revision_of(&object)) {
            return None;
        }
        if let Some(old) = old.as_deref() {
            self.unindex(&name, old);
        }
        for index in object.indices() {
            self.index.entry(index).or_default().insert(name.clone());
        }
        let new = Arc::new(object);
        self.objects.insert(name, new.clone());
        Some(Transition { old, new: Some(new) })
    }

    fn remove(&mut self, name: &ObjectName, uid: &str) -> Option<Transition<K>> {
        let old = self.objects.get(name).filter(|old| uid_of(old.as_ref()) == uid)?.clone();
        self.objects.remove(name);
        self.unindex(name, &old);
        Some(Transition { old: Some(old), new: None })
    }

    fn unindex(&mut self, name: &ObjectName, old: &K) {
        for index in old.indices() {
            if let Some(names) = self.index.get_mut(&index) {
                names.remove(name);
                if names.is_empty() {
                    self.index.remove(&index);
                }
            }
        }
    }
}

/// Namespace (empty if it has none) and name of an object.
pub fn name_of<K: Resource>(object: &K) -> ObjectName {
    let meta = object.meta();
    ObjectName::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// An object's uid; empty if it has none.
pub fn uid_of<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// An object's resource version as a number; 0 if it has none.
pub fn revision_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    impl Cached for ConfigMap {
        fn indices(&self) -> Vec<Index> {
            let labels = self.metadata.labels.iter().flatten();
            labels.map(|(key, value)| Index::Label("ns".into(), key.as_str().into(), value.as_str().into())).collect()
        }
    }

    fn object(name: &str, uid: &str, revision: u64, color: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("ns".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(revision.to_string()),
            labels: Some([("color".to_owned(), color.to_owned())].into()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn names(cache: &Cache<ConfigMap>, color: &str) -> Vec<String> {
        let found = cache.select(&Index::Label("ns".into(), "color".into(), color.into()));
        found.iter().map(|object| object.metadata.name.clone().unwrap_or_default()).collect()
    }

    #[test]
    fn the_index_follows_changes() {
        let cache = Cache::default();
        cache.apply(object("a", "1", 1, "red"));
        cache.apply(object("b", "2", 2, "red"));
        cache.apply(object("a", "1", 3, "blue"));
        assert_eq!((names(&cache, "red"), names(&cache, "blue")), (vec!["b".to_owned()], vec!["a".to_owned()]));
        cache.remove(&object("b", "2", 4, "red"));
        assert!(names(&cache, "red").is_empty());
    }

    #[test]
    fn an_older_version_changes_nothing() {
        let cache = Cache::default();
        cache.apply(object("a", "1", 5, "red"));
        assert!(cache.apply(object("a", "1", 4, "blue")).is_none());
        assert!(cache.apply(object("a", "1", 5, "blue")).is_none());
        assert_eq!(names(&cache, "red"), ["a"]);
    }

    #[test]
    fn a_lagging_watch_does_not_bring_back_what_we_deleted() {
        let cache = Cache::default();
        cache.apply(object("a", "1", 1, "red"));
        cache.absorb_deletion(&object("a", "1", 1, "red"));
        assert!(cache.apply(object("a", "1", 2, "red")).is_none());
        cache.remove(&object("a", "1", 3, "red"));
        assert!(cache.apply(object("a", "9", 4, "red")).is_some());
    }

    #[test]
    fn an_answer_that_comes_after_the_watch_told_more_is_ignored() {
        let cache = Cache::default();
        cache.apply(object("a", "1", 1, "red"));
        cache.remove(&object("a", "1", 2, "red"));
        cache.set_seen(2);
        assert!(cache.absorb(object("a", "1", 1, "red")).is_none());
        assert!(cache.absorb(object("b", "2", 3, "red")).is_some());
    }

    #[test]
    fn a_list_older_than_what_was_seen_is_all_there_is() {
        let cache = Cache::default();
        cache.apply(object("a", "1", 90, "red"));
        cache.apply(object("b", "2", 91, "red"));
        cache.set_seen(91);
        cache.replace(vec![object("a", "1", 4, "blue")], 5);
        assert_eq!((names(&cache, "red").len(), names(&cache, "blue")), (0, vec!["a".to_owned()]));
        assert_eq!(cache.seen(), Some(5));
    }

    #[test]
    fn a_list_removes_what_is_not_in_it_but_not_what_we_wrote_since() {
        let cache = Cache::default();
        cache.apply(object("old", "1", 1, "red"));
        cache.absorb(object("own", "2", 9, "red"));
        let transitions = cache.replace(vec![object("new", "3", 4, "red")], 5);
        assert_eq!(transitions.len(), 2);
        assert_eq!(names(&cache, "red"), ["new", "own"]);
    }
}
