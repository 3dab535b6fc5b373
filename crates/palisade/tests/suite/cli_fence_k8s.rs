//! `palisade fence k8s` prints a fence, and refuses names that would print one that judges nothing. The API server's own library
//! evaluates the output: `proof/kubernetes/policy`.

use std::process::Output;

use crate::common::{json, palisade, status, text};

fn k8s(arguments: &[&str]) -> Output {
    let mut command = palisade();
    command.args(["fence", "k8s"]).args(arguments);
    command.output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = k8s(&[&["--service-account", "shop:deployer"], arguments].concat());
    assert_eq!(
        status(&output),
        0,
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

/// The documents of a kind.
fn of_kind<'a>(yaml: &'a str, kind: &str) -> Vec<&'a str> {
    let line = format!("\nkind: {kind}\n");
    let documents = yaml.split("\n---\n");
    documents
        .filter(|document| document.contains(&line))
        .collect()
}

#[test]
fn the_fence_of_kubernetes_is_for_the_kinds_named_with_their_subresources() {
    let arguments = ["deployments.apps", "configmaps", "widgets.shop.example"];
    let yaml = printed(&arguments);
    assert_eq!(yaml, printed(&arguments), "it is the same each time");
    assert!(!yaml.contains('@'), "every place is filled: {yaml}");
    let policy = of_kind(&yaml, "ValidatingAdmissionPolicy")[0];
    for (group, resource) in [
        ("apps", "deployments"),
        ("", "configmaps"),
        ("shop.example", "widgets"),
    ] {
        let rule = format!(
            "      - apiGroups: [\"{group}\"]\n        apiVersions: [\"*\"]\n        \
             operations: [\"CREATE\", \"UPDATE\", \"DELETE\"]\n        resources: [\"{resource}\", \"{resource}/*\"]\n"
        );
        assert!(policy.contains(&rule), "{policy}");
    }
    assert!(policy.contains("failurePolicy: Fail"));
    assert!(policy.contains("<= 70368744177664"), "the default leap");
    let binding = of_kind(&yaml, "ValidatingAdmissionPolicyBinding")[0];
    assert!(binding.contains("policyName: palisade-fence"));
    assert!(binding.contains("validationActions: [\"Deny\"]"));
    assert!(!binding.contains("matchResources"), "all namespaces");
    let roles = of_kind(&yaml, "ClusterRole").join("\n");
    for right in [
        r#"resources: ["userextras/palisade/token", "userextras/palisade/authority", "userextras/palisade/lock"], verbs: ["impersonate"]"#,
        r#"apiGroups: ["apps"], resources: ["deployments"], verbs: ["get", "list", "watch", "patch", "update", "delete"]"#,
        r#"apiGroups: ["apps"], resources: ["deployments/status"], verbs: ["get", "patch", "update"]"#,
        r#"apiGroups: [""], resources: ["configmaps"]"#,
    ] {
        assert!(roles.contains(right), "{right}: {roles}");
    }
    assert!(!roles.contains("scale"));
    let own = of_kind(&yaml, "Role")[0];
    assert!(
        own.contains(
            r#"resources: ["serviceaccounts"], resourceNames: ["deployer"], verbs: ["impersonate"]"#
        ),
        "it may act as nobody else: {own}"
    );
    assert!(own.contains("namespace: \"shop\""));

    let output = k8s(&["configmaps", "--service-account", "a:b", "--json"]);
    let json = json(&output.stdout);
    assert!(json["yaml"].as_str().unwrap().contains("configmaps/*"));
}

#[test]
fn the_fence_of_kubernetes_has_a_scope_and_exempts_users() {
    let yaml = printed(&[
        "jobs.batch",
        "--namespace",
        "shop",
        "-n",
        "stock",
        "--exempt",
        "system:serviceaccount:argocd:argocd",
        "--exempt",
        "group:oncall",
        "--exempt",
        "alice@shop.example",
        "--service-account",
        "ops:bot",
        "--service-account",
        "shop:other",
        "--name",
        "fence-of-jobs",
        "--max-jump",
        "1000",
    ]);
    let policy = of_kind(&yaml, "ValidatingAdmissionPolicy")[0];
    assert!(policy.contains("  name: fence-of-jobs\n"));
    assert!(policy.contains(
        "in ['system:apiserver', 'system:kube-controller-manager', 'system:kube-scheduler', \
         'system:serviceaccount:argocd:argocd', 'alice@shop.example']"
    ));
    assert!(
        policy
            .contains("group in ['system:nodes', 'system:serviceaccounts:kube-system', 'oncall']")
    );
    assert!(policy.contains("variables.token - variables.mark <= 1000"));
    let binding = of_kind(&yaml, "ValidatingAdmissionPolicyBinding")[0];
    assert!(
        binding.contains(
            r#"{key: kubernetes.io/metadata.name, operator: In, values: ["shop", "stock"]}"#
        ),
        "{binding}"
    );
    // A holder writes in the two namespaces only, and is itself in its own.
    assert_eq!(of_kind(&yaml, "ClusterRoleBinding").len(), 1);
    let roles = of_kind(&yaml, "Role");
    assert_eq!(roles.len(), 2);
    assert!(roles[0].contains(r#"resourceNames: ["bot"]"#));
    assert!(roles[1].contains(r#"resourceNames: ["deployer", "other"]"#));
    let bindings = of_kind(&yaml, "RoleBinding");
    let writes = bindings
        .iter()
        .filter(|one| one.contains("fence-of-jobs-write"));
    assert_eq!(writes.count(), 2);
}

#[test]
fn a_name_that_would_fence_nothing_is_refused() {
    for (kind, why, hint) in [
        (
            "deployments",
            "the core group has no such kind",
            "deployments.apps, perhaps",
        ),
        (
            "deployment.apps",
            "apps has no such kind",
            "deployments.apps, perhaps",
        ),
        (
            "configmap",
            "the core group has no such kind",
            "configmaps, perhaps",
        ),
        ("jobs.apps", "apps has no such kind", "jobs.batch, perhaps"),
        (
            "zebras",
            "the core group has no such kind",
            "kubectl api-resources lists the names",
        ),
        (
            "Deployment.apps",
            "a plural name in lower case",
            "kubectl api-resources",
        ),
        (
            "deployments.apps/v1",
            "a subresource or a version",
            "name the kind alone",
        ),
        (
            "deployments/scale",
            "a subresource or a version",
            "name the kind alone",
        ),
        (
            "widgets.shop",
            "Kubernetes has no group \"shop\"",
            "kubectl api-resources",
        ),
        (
            "configmaps.",
            "a plural name in lower case",
            "kubectl api-resources",
        ),
        ("*", "a plural name in lower case", "kubectl api-resources"),
        ("", "a plural name in lower case", "kubectl api-resources"),
        (
            "a\"]\nb",
            "a plural name in lower case",
            "kubectl api-resources",
        ),
        (
            "tokenreviews.authentication.k8s.io",
            "its objects are not stored",
            "",
        ),
        (
            "validatingadmissionpolicies.admissionregistration.k8s.io",
            "the API server applies no admission policy",
            "",
        ),
    ] {
        refused(
            &[kind, "--service-account", "shop:deployer"],
            &["cannot be fenced", why, hint],
        );
    }
    refused(
        &["pods", "pods", "--service-account", "a:b"],
        &["\"pods\" is named twice"],
    );
}

#[test]
fn names_that_cannot_stand_in_the_manifests_are_refused() {
    for (flag, value, why) in [
        ("--service-account", "deployer", "write NAMESPACE:NAME"),
        ("--service-account", "shop:", "write NAMESPACE:NAME"),
        ("--service-account", "Shop:a", "write NAMESPACE:NAME"),
        ("--namespace", "a.b", "1 to 63 of"),
        ("--namespace", "", "1 to 63 of"),
        ("--name", "A", "1 to 253 of"),
        ("--exempt", "", "printable ASCII"),
        ("--exempt", "a'b", "printable ASCII"),
        ("--exempt", "a\\b", "printable ASCII"),
        ("--exempt", "a b", "printable ASCII"),
        ("--exempt", "group:", "printable ASCII"),
        (
            "--exempt",
            "group:system:authenticated",
            "would exempt everybody",
        ),
        (
            "--exempt",
            "group:system:serviceaccounts",
            "would exempt everybody",
        ),
        ("--max-jump", "0", "1"),
    ] {
        refused(
            &["pods", "--service-account", "a:b", flag, value],
            &[flag, why],
        );
    }
    refused(&["pods"], &["--service-account"]);
    refused(&["--service-account", "a:b"], &["KIND"]);
}

fn refused(arguments: &[&str], words: &[&str]) {
    let output = k8s(arguments);
    assert_eq!(status(&output), 2, "{arguments:?}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    let said = text(&output.stderr);
    for word in words {
        assert!(said.contains(word), "{arguments:?}: {word}: {said}");
    }
}

#[test]
fn the_help_of_the_fence_of_kubernetes_has_examples() {
    let output = k8s(&["--help"]);
    let help = text(&output.stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "as `kubectl api-resources` names them",
        "--service-account <NAMESPACE:NAME>",
        "Creations are not fenced",
        "1 – 9007199254740991",
        "Examples: palisade fence k8s deployments.apps",
        "| kubectl apply -f -",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
}
