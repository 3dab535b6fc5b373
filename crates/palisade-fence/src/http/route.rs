//! From a request to the resource it acts on.

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::http::{Problem, TOKEN_HEADER};
use crate::name::ResourceId;

/// Says which resource a request acts on. A function of the request's head is one, and so is a table of
/// prefixes, [`Routes`].
pub trait Resources: Send + Sync + 'static {
    /// The resource; `None` where nothing is fenced. A request that carries a token and gets `None` is
    /// refused, because nobody would check it.
    ///
    /// # Errors
    /// What to answer to a request that cannot be mapped.
    fn target(&self, head: &Parts) -> Result<Option<Target>, Problem>;
}

impl<F> Resources for F
where
    F: Fn(&Parts) -> Result<Option<Target>, Problem> + Send + Sync + 'static,
{
    fn target(&self, head: &Parts) -> Result<Option<Target>, Problem> {
        self(head)
    }
}

/// What a request acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The resource.
    pub resource: ResourceId,
    /// Whether it changes the resource; by the method, unless somebody knows better. Every gRPC call is
    /// a POST, so its reads must be told apart here.
    pub writes: Option<bool>,
}

impl Target {
    /// A resource that the methods speak for.
    #[must_use]
    pub const fn new(resource: ResourceId) -> Target {
        Target {
            resource,
            writes: None,
        }
    }

    /// A call that only reads, whatever its method.
    #[must_use]
    pub fn reading(self) -> Target {
        Target {
            writes: Some(false),
            ..self
        }
    }

    /// A call that writes, whatever its method.
    #[must_use]
    pub fn writing(self) -> Target {
        Target {
            writes: Some(true),
            ..self
        }
    }
}

/// A table of prefixes: `/accounts/{id}=account:{id}`. The longest that fits counts, and of two equally
/// long ones the one that spells out more.
///
/// Prefixes are compared segment by segment, percent-decoded. Spellings that a service may read in more
/// than one way (`//`, `.`, `..`, an encoded slash) are refused when they would have to be mapped.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    pass_unrouted: bool,
}

#[derive(Clone, Debug)]
struct Route {
    prefix: Vec<Segment>,
    name: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any(String),
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    /// What stands at this segment of the path.
    Segment(usize),
}

/// A route that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {route:?}: {why}")]
pub struct BadRoute {
    /// As it was given.
    pub route: String,
    /// What is wrong with it.
    pub why: String,
}

impl Routes {
    /// Reads a table, each line as `PREFIX=RESOURCE`.
    ///
    /// # Errors
    /// [`BadRoute`] names the first that is wrong, or told twice.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Routes, BadRoute> {
        let mut routes: Vec<Route> = Vec::new();
        for line in lines {
            let bad = |why: String| BadRoute {
                route: line.to_owned(),
                why,
            };
            let route = Route::parse(line).map_err(bad)?;
            if routes.iter().any(|known| known.is_like(&route)) {
                return Err(bad("this prefix is told twice".to_owned()));
            }
            routes.push(route);
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.weight()));
        Ok(Routes {
            routes,
            pass_unrouted: false,
        })
    }

    /// The same table, letting writes through that no route maps. They are not fenced.
    #[must_use]
    pub fn pass_unrouted(self, pass_unrouted: bool) -> Routes {
        Routes {
            pass_unrouted,
            ..self
        }
    }

    fn find(&self, segments: &[String]) -> Option<Result<ResourceId, Problem>> {
        let route = self.routes.iter().find(|route| route.fits(segments))?;
        Some(ResourceId::new(&route.name(segments)).map_err(Problem::from))
    }
}

impl Resources for Routes {
    fn target(&self, head: &Parts) -> Result<Option<Target>, Problem> {
        let safe = is_safe(&head.method);
        if safe && !head.headers.contains_key(TOKEN_HEADER) {
            return Ok(None);
        }
        match self.find(&segments(head.uri.path())?) {
            Some(found) => found.map(|resource| Some(Target::new(resource))),
            None if safe || self.pass_unrouted => Ok(None),
            None => Err(Problem::new(
                http::StatusCode::NOT_FOUND,
                "no_route",
                format!(
                    "no route maps {} to a resource, so a write there would not be fenced",
                    head.uri.path()
                ),
            )),
        }
    }
}

/// Whether a method promises to change nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    )
}

/// The decoded segments of a path; a slash at its end makes no difference.
fn segments(path: &str) -> Result<Vec<String>, Problem> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect()
}

fn segment(raw: &str) -> Result<String, Problem> {
    let decoded = percent_decode_str(raw).decode_utf8();
    let text = decoded
        .map_err(|_| Problem::invalid("the address is not UTF-8 when it is percent-decoded"))?;
    match text.as_ref() {
        "" | "." | ".." => Err(Problem::invalid(
            "the address has an empty segment, '.' or '..': it could be read as another one",
        )),
        text if text.contains(['/', '\\']) => Err(Problem::invalid(
            "the address has an encoded slash: it could be read as another one",
        )),
        text => Ok(text.to_owned()),
    }
}

impl Route {
    fn parse(line: &str) -> Result<Route, String> {
        let (prefix, name) = line
            .split_once('=')
            .ok_or("it must be spelled PREFIX=RESOURCE")?;
        if !prefix.starts_with('/') {
            return Err("the prefix must start with '/'".to_owned());
        }
        let prefix = prefix
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(Segment::parse)
            .collect::<Result<Vec<_>, _>>()?;
        let route = Route {
            name: pieces(name, &prefix)?,
            prefix,
        };
        let probe: Vec<String> = route.prefix.iter().map(|_| "x".to_owned()).collect();
        match ResourceId::new(&route.name(&probe)) {
            Ok(_) => Ok(route),
            Err(invalid) => Err(invalid.to_string()),
        }
    }

    fn fits(&self, segments: &[String]) -> bool {
        segments.len() >= self.prefix.len()
            && self
                .prefix
                .iter()
                .zip(segments)
                .all(|(segment, given)| match segment {
                    Segment::Literal(text) => text == given,
                    Segment::Any(_) => true,
                })
    }

    fn name(&self, segments: &[String]) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Segment(at) => segments.get(*at).cloned().unwrap_or_default(),
        };
        self.name.iter().map(text).collect()
    }

    /// Both map the same paths.
    fn is_like(&self, other: &Route) -> bool {
        let same = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Any(_), Segment::Any(_)) => true,
            _ => a == b,
        };
        self.prefix.len() == other.prefix.len() && self.prefix.iter().zip(&other.prefix).all(same)
    }

    /// Longer first, then what spells out more, then what spells it out earlier.
    fn weight(&self) -> (usize, usize, Vec<bool>) {
        let literal: Vec<bool> = self
            .prefix
            .iter()
            .map(|segment| matches!(segment, Segment::Literal(_)))
            .collect();
        let spelled = literal.iter().filter(|literal| **literal).count();
        (self.prefix.len(), spelled, literal)
    }
}

impl Segment {
    fn parse(raw: &str) -> Result<Segment, String> {
        let inner = raw
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        match inner {
            Some(name) if is_placeholder(name) => Ok(Segment::Any(name.to_owned())),
            None if !raw.contains(['{', '}']) => segment(raw)
                .map(Segment::Literal)
                .map_err(|_| format!("{raw:?} is no segment of a path")),
            _ => Err(format!("{raw:?} is no placeholder: {PLACEHOLDER}")),
        }
    }
}

fn pieces(name: &str, prefix: &[Segment]) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), name);
    while let Some((text, after)) = rest.split_once('{') {
        let (placeholder, after) = after
            .split_once('}')
            .ok_or(format!("a '{{' without a '}}': {PLACEHOLDER}"))?;
        let named =
            |segment: &Segment| matches!(segment, Segment::Any(name) if name == placeholder);
        let at = prefix.iter().position(named);
        let at = at.ok_or(format!("the prefix has no {{{placeholder}}}"))?;
        pieces.push(Piece::Text(text.to_owned()));
        pieces.push(Piece::Segment(at));
        rest = after;
    }
    if rest.contains('}') {
        return Err(format!("a '}}' without a '{{': {PLACEHOLDER}"));
    }
    pieces.push(Piece::Text(rest.to_owned()));
    Ok(pieces)
}

fn is_placeholder(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

const PLACEHOLDER: &str = "a placeholder is a whole segment, like {id}, of letters, digits and _";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(routes: &Routes, method: &str, path: &str) -> Result<Option<String>, &'static str> {
        let head = http::Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .unwrap();
        let target = routes.target(&head.into_parts().0);
        target
            .map(|target| target.map(|target| target.resource.to_string()))
            .map_err(|problem| problem.code())
    }

    #[test]
    fn the_longest_prefix_counts() {
        let routes = Routes::parse([
            "/=all",
            "/accounts/{id}=account:{id}",
            "/accounts/admin=admins",
            "/accounts/{id}/cards/{card}=card:{card}@{id}",
        ])
        .unwrap();
        for (path, resource) in [
            ("/", "all"),
            ("/x/y", "all"),
            ("/accounts", "all"),
            ("/accountsx/7", "all"),
            ("/accounts/7", "account:7"),
            ("/accounts/7/", "account:7"),
            ("/accounts/%37?x=1", "account:7"),
            ("/accounts/7/deposits", "account:7"),
            ("/accounts/admin/x", "admins"),
            ("/accounts/7/cards/9", "card:9@7"),
        ] {
            assert_eq!(
                found(&routes, "POST", path),
                Ok(Some(resource.to_owned())),
                "{path}"
            );
        }
    }

    #[test]
    fn what_could_be_read_as_another_address_is_refused() {
        let routes = Routes::parse(["/a/{id}={id}"]).unwrap();
        for path in [
            "/a//b",
            "//a/b",
            "/a/./b",
            "/a/../b",
            "/a/%2e%2E/b",
            "/a/b%2Fc",
            "/a/b%5cc",
            "/a/%ff",
            "/a/%C3%A4",
        ] {
            assert_eq!(found(&routes, "PUT", path), Err("invalid"), "{path}");
            assert_eq!(found(&routes, "GET", path), Ok(None), "{path}");
        }
        assert_eq!(found(&routes, "PUT", "/b/c"), Err("no_route"));
        assert_eq!(found(&routes.pass_unrouted(true), "PUT", "/b/c"), Ok(None));
    }

    #[test]
    fn a_bad_route_says_why() {
        for (lines, why) in [
            (&["/a"][..], "PREFIX=RESOURCE"),
            (&["a=b"], "start with '/'"),
            (&["/a="], "is empty"),
            (&["/a=ä"], "not printable ASCII"),
            (&["/{id=x"], "no placeholder"),
            (&["/a{id}=x"], "no placeholder"),
            (&["/{}=x"], "no placeholder"),
            (&["/{id}={other}"], "no {other}"),
            (&["/{id}={id"], "without a '}'"),
            (&["/{id}=id}"], "without a '{'"),
            (&["/a/../b=x"], "no segment"),
            (&["/{a}=x", "/{b}=y"], "told twice"),
        ] {
            let refused = Routes::parse(lines.iter().copied())
                .unwrap_err()
                .to_string();
            assert!(refused.contains(why), "{lines:?}: {refused}");
        }
    }
}
