//! Pure. What a container runs: the image's program or its `command`, `args`, the environment, `$(NAME)` expanded, as
//! Kubernetes says it.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrunnable {
    /// A source of an environment variable that the lab does not have.
    #[error(
        "environment variable {name}: the lab fills in `value` and `fieldRef` (metadata.name, metadata.namespace, metadata.uid, spec.nodeName, status.podIP, status.podIPs, status.hostIP), not {what}"
    )]
    Variable {
        /// The variable.
        name: String,
        /// What it asks for.
        what: String,
    },
}

/// Where the program of a mapped image stands inside the pod, below [`PROGRAMS`].
pub fn program_name(container: &str, file: &std::path::Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{container}/{name}")
}

/// What to start for a container.
///
/// # Errors
/// Its environment asks for what the lab does not have.
pub fn start(pod: &Pod, container: &Container, image: &Image, around: &Surroundings<'_>) -> Result<Start, Unrunnable> {
    let env = environment(pod, container, image, around)?;
    let filled = |words: &Option<Vec<String>>| -> Vec<String> {
        words.iter().flatten().map(|word| expand(word, &env)).collect()
    };
    let mut argv = filled(&container.command);
    if argv.is_empty() {
        argv = match image {
            Image::Echo => vec![format!("{PROGRAMS}/signpost"), "echo".to_owned()],
            Image::Program(path) => vec![format!("{PROGRAMS}/{}", program_name(&container.name, path))],
        };
    }
    argv.extend(filled(&container.args));
    let (user, group) = user(pod, container);
    Ok(Start { id: 0, argv, env, directory: container.working_dir.clone(), terminal: None, user, group })
}

fn environment(
    pod: &Pod,
    container: &Container,
    image: &Image,
    around: &Surroundings<'_>,
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
    for variable in container.env.iter().flatten() {
        let value = value(pod, variable, around, &env)?;
        env.retain(|(name, _)| *name != variable.name);
        env.push((variable.name.clone(), value));
    }
    Ok(env)
}

fn value(
    pod: &Pod,
    variable: &EnvVar,
    around: &Surroundings<'_>,
    env: &[(String, String)],
) -> Result<String, Unrunnable> {
    let Some(source) = &variable.value_from else {
        return Ok(expand(variable.value.as_deref().unwrap_or_default(), env));
    };
    let refuse = |what: &str| Unrunnable::Variable { name: variable.name.clone(), what: what.to_owned() };
    let field = source.field_ref.as_ref().ok_or_else(|| refuse("another source"))?;
    let addresses = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let text = match field.field_path.as_str() {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        "status.podIP" => addresses(around.addresses).into_iter().next(),
        "status.podIPs" => Some(addresses(around.addresses).join(",")),
        "status.hostIP" => addresses(around.host_addresses).into_iter().next(),
        other => return Err(refuse(other)),
    };
    Ok(text.unwrap_or_default())
}

/// `$(NAME)` becomes the value, if there is such a variable; `$$` is a dollar sign.
fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
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
    result
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
        let argv = |container: &Container, image| start(&pod, container, image, &around()).unwrap().argv;
        assert_eq!(argv(&container, &Image::Echo), ["/run/signpost/bin/signpost", "echo", "--listen", "tcp/80"]);
        let nginx = Image::Program("/usr/sbin/nginx".into());
        assert_eq!(argv(&container, &nginx)[0], "/run/signpost/bin/c/nginx");
        container.command = words(&["sleep", "$(TIME)", "$$(TIME)", "$(NONE)"]);
        container.args = None;
        container.env = Some(vec![variable("TIME", "5")]);
        assert_eq!(argv(&container, &nginx), ["sleep", "5", "$(TIME)", "$(NONE)"]);
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
        let env = start(&pod, &container, &image, &around()).unwrap().env;
        assert!(env.contains(&("HELLO".into(), "I am web-1".into())));
        assert_eq!(env.iter().filter(|(name, _)| name == "HOME").count(), 1);
        container.env = Some(vec![field("X", "metadata.labels")]);
        assert!(start(&pod, &container, &image, &around()).is_err());
    }
}
