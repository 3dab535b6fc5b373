//! `palisade fence k8s`: prints the fence of Kubernetes objects, which the API server itself enforces.
//!
//! ```text
//!   KIND…              ┐
//!   --namespace        ├► ValidatingAdmissionPolicy (CEL), and its binding
//!   --exempt           ┘
//!   --service-account  ──► roles: carry a token, write the kinds
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::Args;
use palisade_core::Token;
use serde_json::json;

use super::super::failure::Failure;
use super::super::help;
use super::super::output::Out;
use super::super::store::JumpArgs;

/// The policy and its binding, with `@PLACES@` for what differs.
const POLICY: &str = include_str!("k8s/policy.yaml");

/// The control plane, without which no object would get on.
const USERS: [&str; 3] = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
];
const GROUPS: [&str; 2] = ["system:nodes", "system:serviceaccounts:kube-system"];

/// The extras in which a pass travels.
const EXTRAS: [&str; 3] = [
    "userextras/palisade/token",
    "userextras/palisade/authority",
    "userextras/palisade/lock",
];

/// The kinds of Kubernetes itself, with their groups. In another group with a dot, every name is taken as it is.
const KNOWN: [(&str, &str); 13] = [
    (
        "",
        "configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims persistentvolumes pods podtemplates \
         replicationcontrollers resourcequotas secrets serviceaccounts services",
    ),
    (
        "apps",
        "controllerrevisions daemonsets deployments replicasets statefulsets",
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("batch", "cronjobs jobs"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("coordination.k8s.io", "leases"),
    ("discovery.k8s.io", "endpointslices"),
    (
        "networking.k8s.io",
        "ingressclasses ingresses networkpolicies ipaddresses servicecidrs",
    ),
    ("policy", "poddisruptionbudgets"),
    (
        "rbac.authorization.k8s.io",
        "clusterrolebindings clusterroles rolebindings roles",
    ),
    ("scheduling.k8s.io", "priorityclasses"),
];

/// Groups whose objects no policy judges, or whose objects are not stored.
const UNJUDGED: [(&str, &str); 3] = [
    (
        "admissionregistration.k8s.io",
        "the API server applies no admission policy to them",
    ),
    ("authentication.k8s.io", "its objects are not stored"),
    ("authorization.k8s.io", "its objects are not stored"),
];

/// `palisade fence k8s`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::FENCE_K8S_AFTER)]
pub(crate) struct K8sArgs {
    /// The kinds to fence, as `kubectl api-resources` names them: RESOURCE.GROUP, or RESOURCE alone in the core group, such as
    /// deployments.apps or configmaps. Their subresources are fenced with them.
    #[arg(required = true, value_name = "KIND")]
    kinds: Vec<String>,
    /// A holder: the service account that writes under a lock, as NAMESPACE:NAME. May be repeated.
    #[arg(
        long = "service-account",
        required = true,
        value_name = "NAMESPACE:NAME"
    )]
    accounts: Vec<String>,
    /// Fence only the objects in this namespace. May be repeated [default: all namespaces, and objects outside any]
    #[arg(long = "namespace", short = 'n', value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// A user that may still write without a token, as the control plane may, but not change the annotations: USER,
    /// group:GROUP, or system:serviceaccount:NAMESPACE:NAME. May be repeated.
    #[arg(long = "exempt", value_name = "USER")]
    exempt: Vec<String>,
    /// The name of the printed objects.
    #[arg(long, default_value = "palisade-fence")]
    name: String,
    #[command(flatten)]
    jump: JumpArgs,
}

/// A kind of object: its plural name, and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectKind<'a> {
    group: &'a str,
    resource: &'a str,
}

pub(super) fn k8s(args: &K8sArgs, out: Out) -> Result<(), Failure> {
    let kinds = each(&args.kinds, kind)?;
    let accounts = each(&args.accounts, account)?;
    let namespaces = each(&args.namespaces, |name| namespace(name))?;
    let exempt = each(&args.exempt, exempt)?;
    if !is_subdomain(&args.name) {
        return Err(Failure::usage(format!(
            "--name {:?}: 1 to 253 of a–z, 0–9, - and . are allowed, with a letter or digit at both ends",
            args.name
        )));
    }
    let mut yaml = policy(args, &kinds, &namespaces, &exempt);
    roles(&mut yaml, &args.name, &kinds, &accounts, &namespaces);
    if out.json {
        out.value(&json!({"yaml": yaml}))
    } else {
        out.text(yaml.trim_end())
    }
}

/// Reads each of the arguments, of which none may be there twice.
fn each<'a, T: Ord + Copy>(
    given: &'a [String],
    read: impl Fn(&'a str) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for text in given {
        let one = read(text)?;
        if !seen.insert(one) {
            return Err(Failure::usage(format!("{text:?} is named twice")));
        }
        all.push(one);
    }
    Ok(all)
}

fn kind(text: &str) -> Result<ObjectKind<'_>, Failure> {
    let bad = |why: &str| Failure::usage(format!("{text:?} cannot be fenced: {why}"));
    let names = "kubectl api-resources lists the names";
    if text.contains('/') {
        return Err(bad("it names a subresource or a version")
            .hint("name the kind alone, such as deployments.apps: its versions and subresources are fenced with it"));
    }
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    if !is_label(resource) || !(group.is_empty() && !text.contains('.') || is_subdomain(group)) {
        let why = "a kind is a plural name in lower case with its group, such as deployments.apps";
        return Err(bad(why).hint(names));
    }
    if let Some((_, why)) = UNJUDGED.iter().find(|(unjudged, _)| *unjudged == group) {
        return Err(bad(why));
    }
    let kind = ObjectKind { group, resource };
    let Some((_, known)) = KNOWN.iter().find(|(known, _)| *known == group) else {
        if !group.contains('.') {
            let why = format!("Kubernetes has no group {group:?}");
            return Err(bad(&why).hint(names));
        }
        return Ok(kind);
    };
    if known.split(' ').any(|one| one == resource) {
        return Ok(kind);
    }
    let why = match group {
        "" => "the core group has no such kind, so the fence would match nothing".to_owned(),
        group => format!("{group} has no such kind, so the fence would match nothing"),
    };
    Err(bad(&why).hint(match probably(kind) {
        Some(meant) => format!("{meant}, perhaps; {names}"),
        None => names.to_owned(),
    }))
}

/// The kind that was probably meant: the same name in another group, or a similar one.
fn probably(given: ObjectKind<'_>) -> Option<String> {
    let all = KNOWN.iter().flat_map(|(group, resources)| {
        resources
            .split(' ')
            .map(|resource| ObjectKind { group, resource })
    });
    let likeness = |kind: &ObjectKind<'_>| {
        strsim::jaro_winkler(kind.resource, given.resource)
            + if kind.group == given.group { 0.01 } else { 0.0 }
    };
    let best = all.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(&best) > 0.9).then(|| match best.group {
        "" => best.resource.to_owned(),
        group => format!("{}.{group}", best.resource),
    })
}

fn account(text: &str) -> Result<(&str, &str), Failure> {
    match text.split_once(':') {
        Some((namespace, name)) if is_label(namespace) && is_subdomain(name) => {
            Ok((namespace, name))
        }
        _ => Err(Failure::usage(format!(
            "--service-account {text:?}: write NAMESPACE:NAME, such as shop:deployer"
        ))),
    }
}

fn namespace(text: &str) -> Result<&str, Failure> {
    if is_label(text) {
        Ok(text)
    } else {
        Err(Failure::usage(format!(
            "--namespace {text:?}: 1 to 63 of a–z, 0–9 and - are allowed, with a letter or digit at both ends"
        )))
    }
}

/// A user or a group that stands in an expression between quotation marks.
fn exempt(text: &str) -> Result<(bool, &str), Failure> {
    let (is_group, name) = match text.strip_prefix("group:") {
        Some(group) => (true, group),
        None => (false, text),
    };
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"'\"\\".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(plain) {
        return Err(Failure::usage(format!(
            "--exempt {text:?}: 1 to 253 printable ASCII characters are allowed, without spaces, quotation marks and backslashes"
        )));
    }
    // It would exempt everybody.
    if is_group
        && [
            "system:authenticated",
            "system:unauthenticated",
            "system:serviceaccounts",
        ]
        .contains(&name)
    {
        return Err(Failure::usage(format!(
            "--exempt {text:?} would exempt everybody without a token"
        ))
        .hint("name the users that must go on writing"));
    }
    Ok((is_group, name))
}

/// RFC 1123: up to 63 of a–z, 0–9 and -, with a letter or digit at both ends.
fn is_label(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    bytes.len() <= 63 && bytes.iter().all(allowed) && ends(bytes.first()) && ends(bytes.last())
}

/// Labels with dots between them, up to 253 in all.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn policy(
    args: &K8sArgs,
    kinds: &[ObjectKind<'_>],
    namespaces: &[&str],
    exempt: &[(bool, &str)],
) -> String {
    let mut rules = String::new();
    for ObjectKind { group, resource } in kinds {
        let rule = format!(
            "      - apiGroups: [\"{group}\"]\n        apiVersions: [\"*\"]\n        \
             operations: [\"CREATE\", \"UPDATE\", \"DELETE\"]\n        \
             resources: [\"{resource}\", \"{resource}/*\"]\n"
        );
        rules.push_str(&rule);
    }
    let named = |groups: bool, own: &[&str]| {
        let others = exempt.iter().filter(|(is_group, _)| *is_group == groups);
        let all = own.iter().copied().chain(others.map(|(_, name)| *name));
        all.map(|name| format!("'{name}'"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let selector = match namespaces {
        [] => String::new(),
        names => format!(
            "  matchResources:\n    namespaceSelector:\n      matchExpressions:\n        \
             - {{key: kubernetes.io/metadata.name, operator: In, values: {names:?}}}\n"
        ),
    };
    POLICY
        .replace("@NAME@", &args.name)
        .replace("@RULES@\n", &rules)
        .replace("@USERS@", &named(false, &USERS))
        .replace("@GROUPS@", &named(true, &GROUPS))
        .replace("@MAX@", &Token::MAX.to_string())
        .replace("@JUMP@", &args.jump.tokens().to_string())
        .replace("@SELECTOR@\n", &selector)
}

/// The rights of the holders: to carry a token, as themselves, and to write the kinds.
fn roles(
    yaml: &mut String,
    name: &str,
    kinds: &[ObjectKind<'_>],
    accounts: &[(&str, &str)],
    namespaces: &[&str],
) {
    let subject = |namespace: &str, name: &str| {
        format!("  - {{kind: ServiceAccount, namespace: {namespace:?}, name: {name:?}}}\n")
    };
    let subjects: String = accounts
        .iter()
        .map(|(home, one)| subject(home, one))
        .collect();
    let (token, own, write) = (
        format!("{name}-token"),
        format!("{name}-self"),
        format!("{name}-write"),
    );

    let extras = rule("authentication.k8s.io", &EXTRAS, "", &["impersonate"]);
    role(
        yaml,
        "# Holders may carry a token …\n",
        &token,
        None,
        &extras,
    );
    bind(yaml, "ClusterRole", &token, None, &subjects);

    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (home, one) in accounts {
        homes.entry(home).or_default().push(one);
    }
    for (home, names) in homes {
        let only = format!("resourceNames: {names:?}, ");
        let itself = rule("", &["serviceaccounts"], &only, &["impersonate"]);
        let subjects: String = names.iter().map(|one| subject(home, one)).collect();
        role(yaml, "# … as themselves, …\n", &own, Some(home), &itself);
        bind(yaml, "Role", &own, Some(home), &subjects);
    }

    let mut rights = String::new();
    for ObjectKind { group, resource } in kinds {
        let verbs = ["get", "list", "watch", "patch", "update", "delete"];
        rights.push_str(&rule(group, &[resource], "", &verbs));
        let status = format!("{resource}/status");
        rights.push_str(&rule(group, &[&status], "", &["get", "patch", "update"]));
    }
    role(
        yaml,
        "# … and write what is fenced.\n",
        &write,
        None,
        &rights,
    );
    if namespaces.is_empty() {
        bind(yaml, "ClusterRole", &write, None, &subjects);
    }
    for namespace in namespaces {
        bind(yaml, "ClusterRole", &write, Some(namespace), &subjects);
    }
}

/// One rule of a role. `only` limits it to names.
fn rule(group: &str, resources: &[&str], only: &str, verbs: &[&str]) -> String {
    format!("  - {{apiGroups: [{group:?}], resources: {resources:?}, {only}verbs: {verbs:?}}}\n")
}

fn role(yaml: &mut String, note: &str, name: &str, namespace: Option<&str>, rules: &str) {
    let kind = match namespace {
        Some(_) => "Role",
        None => "ClusterRole",
    };
    head(yaml, note, kind, name, namespace);
    let _ = write!(yaml, "rules:\n{rules}");
}

/// Binds a role of the same name.
fn bind(yaml: &mut String, role: &str, name: &str, namespace: Option<&str>, subjects: &str) {
    let kind = match namespace {
        Some(_) => "RoleBinding",
        None => "ClusterRoleBinding",
    };
    head(yaml, "", kind, name, namespace);
    let _ = write!(
        yaml,
        "roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {role}, name: {name:?}}}\nsubjects:\n{subjects}"
    );
}

fn head(yaml: &mut String, note: &str, kind: &str, name: &str, namespace: Option<&str>) {
    let _ = writeln!(
        yaml,
        "---\n{note}apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name:?}"
    );
    if let Some(namespace) = namespace {
        let _ = writeln!(yaml, "  namespace: {namespace:?}");
    }
}
