//! Pure. What a container runs: the image's program or its `command`, `args`, the environment, `$(NAME)` expanded, as
//! Kubernetes says it.

use std::net::IpAddr;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::sources::{Data, NotFound, Origin, Sources};
use crate::echo::Identity;
use crate::images::Image;
use crate::sandbox::{PROGRAMS, Start};

/// The search path of programs in a pod.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a container is told about its surroundings.
#[derive(Debug, Clone)]
pub struct Surroundings<'a> {
    /// The pod's addresses.
    pub addresses: &'a [IpAddr],
    /// Its node's.
    pub host_addresses: &'a [IpAddr],
    /// The cluster address of the Service `kubernetes`.
    pub kubernetes: Option<IpAddr>,
}

/// A container that cannot be run as it is specified.
/// The most that a container is started with. Less than the kernel's limit, so that what it refuses is told.
const LONGEST_BYTES: usize = 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrunnable {
    /// A source of an environment variable that the lab does not have.
    #[error(
        "environment variable {name}: the lab fills in `value`, `configMapKeyRef`, `secretKeyRef` and `fieldRef` (metadata.name, metadata.namespace, metadata.uid, spec.nodeName, spec.serviceAccountName, status.podIP, status.podIPs, status.hostIP, status.hostIPs), not {what}"
    )]
    Variable {
        /// The variable.
        name: String,
        /// What it asks for.
        what: String,
    },
    /// A ConfigMap or Secret is not there.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// It has no such key.
    #[error("couldn't find key {key} in {origin} {namespace}/{name}")]
    NoKey {
        /// What has it not.
        origin: Origin,
        /// The pod's namespace.
        namespace: String,
        /// The object's name.
        name: String,
        /// The key.
        key: String,
    },
    /// Its words and variables together are more than a process could be given.
    #[error("command, arguments and environment are longer than {} KiB together", LONGEST_BYTES / 1024)]
    TooLong,
}

/// The ConfigMaps and Secrets that a container's environment is made from.
pub fn sources(container: &Container) -> BTreeSet<(Origin, String)> {
    let mut wanted = BTreeSet::new();
    for from in container.env_from.iter().flatten() {
        wanted.extend(from.config_map_ref.iter().map(|map| (Origin::ConfigMap, map.name.clone())));
        wanted.extend(from.secret_ref.iter().map(|secret| (Origin::Secret, secret.name.clone())));
    }
    for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        wanted.extend(from.config_map_key_ref.iter().map(|map| (Origin::ConfigMap, map.name.clone())));
        wanted.extend(from.secret_key_ref.iter().map(|secret| (Origin::Secret, secret.name.clone())));
    }
    wanted
}

/// Where the program of a mapped image stands inside the pod, below [`PROGRAMS`]: under its whole path, so that a
/// container whose image is changed finds another one.
pub fn program_name(file: &std::path::Path) -> String {
    format!("images{}", file.display())
}

/// What to start for a container.
///
/// # Errors
/// Its environment asks for what the lab does not have.
pub fn start(
    pod: &Pod,
    container: &Container,
    image: &Image,
    around: &Surroundings<'_>,
    sources: &Sources,
) -> Result<Start, Unrunnable> {
    let env = environment(pod, container, image, around, sources)?;
    let mut room = room(&env)?;
    let mut filled = |words: &Option<Vec<String>>| -> Result<Vec<String>, Unrunnable> {
        let expanded = words.iter().flatten().map(|word| {
            let word = expand(word, &env, room)?;
            room = room.checked_sub(word.len() + 1).ok_or(Unrunnable::TooLong)?;
            Ok(word)
        });
        expanded.collect()
    };
    let mut argv = filled(&container.command)?;
    if argv.is_empty() {
        argv = match image {
            Image::Echo => vec![format!("{PROGRAMS}/signpost"), "echo".to_owned()],
            Image::Dns => vec![format!("{PROGRAMS}/signpost"), "dns".to_owned()],
            Image::Program(path) => vec![format!("{PROGRAMS}/{}", program_name(path))],
        };
    }
    argv.extend(filled(&container.args)?);
    let (user, group) = user(pod, container);
    Ok(Start { id: 0, argv, env, directory: container.working_dir.clone(), terminal: None, user, group })
}

fn environment(
    pod: &Pod,
    container: &Container,
    image: &Image,
    around: &Surroundings<'_>,
    sources: &Sources,
) -> Result<Vec<(String, String)>, Unrunnable> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let mut env = vec![
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), "/root".to_owned()),
        ("HOSTNAME".to_owned(), name.clone()),
    ];
    if let Some(address) = around.kubernetes {
        env.push(("KUBERNETES_SERVICE_HOST".to_owned(), address.to_string()));
        env.push(("KUBERNETES_SERVICE_PORT".to_owned(), "443".to_owned()));
        env.push(("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), "443".to_owned()));
    }
    if *image == Image::Echo {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let values = [name, pod.metadata.namespace.clone().unwrap_or_default(), node];
        env.extend(Identity::VARIABLES.map(str::to_owned).into_iter().zip(values));
    }
    let set = |env: &mut Vec<(String, String)>, name: &str, value: String| {
        env.retain(|(known, _)| known != name);
        env.push((name.to_owned(), value));
    };
    for (name, value) in whole_objects(container, sources)? {
        set(&mut env, &name, value);
    }
    room(&env)?;
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(pod, variable, around, &env, sources)? {
            set(&mut env, &variable.name, value);
            room(&env)?;
        }
    }
    Ok(env)
}

/// How many bytes may come beside this environment.
fn room(env: &[(String, String)]) -> Result<usize, Unrunnable> {
    let length = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    LONGEST_BYTES.checked_sub(length).ok_or(Unrunnable::TooLong)
}

/// What `envFrom` brings.
fn whole_objects(container: &Container, sources: &Sources) -> Result<Vec<(String, String)>, Unrunnable> {
    let mut all = Vec::new();
    for from in container.env_from.iter().flatten() {
        let map = from.config_map_ref.as_ref().map(|map| (Origin::ConfigMap, &map.name, map.optional));
        let secret = from.secret_ref.as_ref().map(|secret| (Origin::Secret, &secret.name, secret.optional));
        for (origin, name, optional) in map.into_iter().chain(secret) {
            let Some(data) = optionally(sources.find(origin, name), optional)? else { continue };
            let prefix = from.prefix.as_deref().unwrap_or_default();
            let named = data.iter().map(|(key, value)| (format!("{prefix}{key}"), text(value)));
            all.extend(named.filter(|(name, _)| !name.is_empty() && !name.contains(['=', '\0'])));
        }
    }
    Ok(all)
}

fn optionally(found: Result<&Data, NotFound>, optional: Option<bool>) -> Result<Option<&Data>, NotFound> {
    match found {
        Err(_) if optional == Some(true) => Ok(None),
        other => other.map(Some),
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).replace('\0', "") // nothing that a process could be given
}

fn value(
    pod: &Pod,
    variable: &EnvVar,
    around: &Surroundings<'_>,
    env: &[(String, String)],
    sources: &Sources,
) -> Result<Option<String>, Unrunnable> {
    let Some(source) = &variable.value_from else {
        return expand(variable.value.as_deref().unwrap_or_default(), env, room(env)?).map(Some);
    };
    let map = source.config_map_key_ref.as_ref().map(|key| (Origin::ConfigMap, &key.name, &key.key, key.optional));
    let secret = source.secret_key_ref.as_ref().map(|key| (Origin::Secret, &key.name, &key.key, key.optional));
    if let Some((origin, name, key, optional)) = map.or(secret) {
        let Some(data) = optionally(sources.find(origin, name), optional)? else { return Ok(None) };
        return match data.get(key) {
            None if optional != Some(true) => Err(Unrunnable::NoKey {
                origin,
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: name.clone(),
                key: key.clone(),
            }),
            found => Ok(found.map(|value| text(value))),
        };
    }
    let refuse = |what: &str| Unrunnable::Variable { name: variable.name.clone(), what: what.to_owned() };
    let field = source.field_ref.as_ref().ok_or_else(|| refuse("another source"))?;
    let addresses = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let text = match field.field_path.as_str() {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" => addresses(around.addresses).into_iter().next(),
        "status.podIPs" => Some(addresses(around.addresses).join(",")),
        "status.hostIP" => addresses(around.host_addresses).into_iter().next(),
        "status.hostIPs" => Some(addresses(around.host_addresses).join(",")),
        other => return Err(refuse(other)),
    };
    Ok(Some(text.unwrap_or_default()))
}

/// `$(NAME)` becomes the value, if there is such a variable; `$$` is a dollar sign. A value may name others, which name
/// others: what comes out is at most `room` bytes long.
fn expand(text: &str, env: &[(String, String)], room: usize) -> Result<String, Unrunnable> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if result.len() > room {
            return Err(Unrunnable::TooLong);
        }
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            result.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix("$(").and_then(|after| after.split_once(')'));
        match name.and_then(|(name, after)| Some((env.iter().find(|(known, _)| known == name)?, after))) {
            Some(((_, value), after)) => {
                result.push_str(value);
                rest = after;
            }
            None => {
                result.push('$');
                rest = &rest[1..];
            }
        }
    }
    result.push_str(rest);
    if result.len() > room { Err(Unrunnable::TooLong) } else { Ok(result) }
}

fn user(pod: &Pod, container: &Container) -> (Option<u32>, Option<u32>) {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let of_container = container.security_context.as_ref();
    let number = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
    let user = of_container.and_then(|c| c.run_as_user).or_else(|| of_pod.and_then(|p| p.run_as_user));
    let group = of_container.and_then(|c| c.run_as_group).or_else(|| of_pod.and_then(|p| p.run_as_group));
    (number(user), number(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{EnvVarSource, ObjectFieldSelector, PodSpec};

    fn around() -> Surroundings<'static> {
        Surroundings { addresses: &[], host_addresses: &[], kubernetes: None }
    }

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
    }

    #[test]
    fn command_replaces_the_images_program_and_args_its_arguments() {
        let pod = Pod { spec: Some(PodSpec::default()), ..Pod::default() };
        let words = |words: &[&str]| Some(words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        let mut container =
            Container { name: "c".into(), args: words(&["--listen", "tcp/80"]), ..Container::default() };
        let argv =
            |container: &Container, image| start(&pod, container, image, &around(), &Sources::default()).unwrap().argv;
        assert_eq!(argv(&container, &Image::Echo), ["/run/signpost/bin/signpost", "echo", "--listen", "tcp/80"]);
        let nginx = Image::Program("/usr/sbin/nginx".into());
        assert_eq!(argv(&container, &nginx)[0], "/run/signpost/bin/images/usr/sbin/nginx");
        container.command = words(&["sleep", "$(TIME)", "$$(TIME)", "$(NONE)"]);
        container.args = None;
        container.env = Some(vec![variable("TIME", "5")]);
        assert_eq!(argv(&container, &nginx), ["sleep", "5", "$(TIME)", "$(NONE)"]);
    }

    #[test]
    fn values_that_name_one_another_do_not_grow_without_end() {
        let doubled = |n: u32| variable(&format!("V{}", n + 1), &format!("$(V{n})$(V{n})"));
        let mut env = vec![variable("V0", "0123456789abcdef")];
        env.extend((0..60).map(doubled));
        let run = |env: Vec<EnvVar>, word: String| {
            let container = Container { env: Some(env), command: Some(vec![word]), ..Container::default() };
            let image = Image::Program("/bin/true".into());
            start(&Pod::default(), &container, &image, &around(), &Sources::default())
        };
        assert!(matches!(run(env.clone(), "true".into()), Err(Unrunnable::TooLong)));
        env.truncate(8);
        assert!(run(env.clone(), "$(V7)".into()).is_ok());
        assert!(matches!(run(env, "$(V7)".repeat(1000)), Err(Unrunnable::TooLong)));
    }

    #[test]
    fn variables_come_from_values_and_fields_and_nothing_else() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-1".into());
        let field = |name: &str, path: &str| EnvVar {
            name: name.into(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        };
        let env = vec![field("ME", "metadata.name"), variable("HELLO", "I am $(ME)"), variable("HOME", "/tmp")];
        let mut container = Container { env: Some(env), ..Container::default() };
        let image = Image::Program("/bin/true".into());
        let none = Sources::default();
        let env = start(&pod, &container, &image, &around(), &none).unwrap().env;
        assert!(env.contains(&("HELLO".into(), "I am web-1".into())));
        assert_eq!(env.iter().filter(|(name, _)| name == "HOME").count(), 1);
        container.env = Some(vec![field("X", "metadata.labels")]);
        assert!(start(&pod, &container, &image, &around(), &none).is_err());
    }

    #[test]
    fn variables_come_from_config_maps_and_secrets_and_a_missing_key_is_named() {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("shop".into());
        let map = [("A", "1"), ("B", "2")].map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let sources = Sources::of([((Origin::ConfigMap, "map".to_owned()), map.into_iter().collect())]);
        let run = |container: serde_json::Value| {
            let container: Container = serde_json::from_value(container).unwrap();
            let image = Image::Program("/bin/true".into());
            let wanted = super::sources(&container);
            start(&pod, &container, &image, &around(), &sources).map(|start| (wanted, start.env))
        };
        let key = |name: &str, key: &str, optional: bool| {
            serde_json::json!({"name": "c", "env": [
                {"name": "X", "valueFrom": {"configMapKeyRef": {"name": name, "key": key, "optional": optional}}},
                {"name": "Y", "value": "is $(X)"}]})
        };
        let (wanted, env) = run(key("map", "B", false)).unwrap();
        assert!(wanted.contains(&(Origin::ConfigMap, "map".into())));
        assert!(env.contains(&("Y".into(), "is 2".into())));
        assert_eq!(run(key("map", "C", false)).unwrap_err().to_string(), "couldn't find key C in ConfigMap shop/map");
        assert_eq!(run(key("other", "C", false)).unwrap_err().to_string(), "configmap \"other\" not found");
        assert!(!run(key("map", "C", true)).unwrap().1.iter().any(|(name, _)| name == "X"));
        let from = serde_json::json!({"name": "c", "envFrom": [
            {"prefix": "P_", "configMapRef": {"name": "map"}}, {"secretRef": {"name": "no", "optional": true}}]});
        assert!(run(from).unwrap().1.contains(&("P_A".into(), "1".into())));
        let from = serde_json::json!({"name": "c", "envFrom": [{"secretRef": {"name": "no"}}]});
        assert_eq!(run(from).unwrap_err().to_string(), "secret \"no\" not found");
    }
}
