//! Maps a request to its resource.

use http::Method;
use http::request::Parts;
use palisade_core::Code;

use crate::http::spelling::{PlaceholderType, segment, segments};
use crate::http::{Problem, TOKEN_HEADER};
use crate::name::ResourceId;

/// Maps a request to the resource on which it acts: a function of the request's head, or a table of prefixes,
/// [`Routes`].
pub trait Resources: Send + Sync + 'static {
    /// Returns the resource; `None` if nothing is fenced at this address. A request with a token is then refused,
    /// because the token would not be checked.
    ///
    /// # Errors
    /// The answer to a request that cannot be mapped.
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

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The resource.
    pub resource: ResourceId,
    /// Whether the request changes the resource; `None` if the method decides. Every gRPC call is a POST, so
    /// gRPC reads must be distinguished here.
    pub writes: Option<bool>,
}

impl Target {
    /// Creates a target for which the method decides whether a request writes.
    #[must_use]
    pub const fn new(resource: ResourceId) -> Target {
        Target {
            resource,
            writes: None,
        }
    }

    /// Returns the same target for a call that only reads, whatever its method.
    #[must_use]
    pub fn reading(self) -> Target {
        Target {
            writes: Some(false),
            ..self
        }
    }

    /// Returns the same target for a call that writes, whatever its method.
    #[must_use]
    pub fn writing(self) -> Target {
        Target {
            writes: Some(true),
            ..self
        }
    }
}

/// A table of prefixes: `/accounts/{id:uint}=account:{id}`. The longest prefix that matches a path decides, and
/// of two equally long ones the one with more literal segments.
///
/// A placeholder has a type, and accepts only the canonical spelling of a value of that type (rule F11):
///
/// | placeholder | accepts |
/// |---|---|
/// | `{id:uint}`, `{id:uint64}`, `{id:int}` | integers up to 2^53 − 1, 2^64 − 1, ±(2^53 − 1): no plus, no leading zeros |
/// | `{id:uuid}` | 8-4-4-4-12 hexadecimal digits in lower case |
/// | `{id:slug}` | lower-case letters, digits, `-`, `_`, beginning with a letter |
/// | `{id:name}` | letters, digits, `-`, `_`, `.`, `~`: for services that compare names byte by byte |
/// | `{id}` | a `uint`, a `uuid`, or a `slug` that cannot be read as either |
///
/// Any other spelling is refused, with the canonical one in the message; it does not fall through to a shorter
/// route. In every path that has to be mapped, everything that a service may read in more than one way is
/// refused, too: `//`, `.`, `..`, `;`, an encoded slash or percent sign, needless encoding, leading or trailing
/// spaces, and literals of a route in another case (`/Accounts`). The path that is sent on is the path that was
/// compared. Queries, headers and bodies are not considered: a service that takes the name of the changed object
/// from there needs one route for everything, or a function of the whole head.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    pass_unrouted: bool,
}

#[derive(Clone, Debug)]
struct Route {
    prefix: Vec<Segment>,
    name: Vec<RoutePiece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any(String, PlaceholderType),
}

#[derive(Clone, Debug)]
enum RoutePiece {
    Text(String),
    /// The segment of the path at this index.
    Segment(usize),
}

/// A route that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {route:?}: {why}")]
pub struct BadRoute {
    /// The given text.
    pub route: String,
    /// The problem.
    pub why: String,
}

impl Routes {
    /// Parses a table, each line as `PREFIX=RESOURCE`.
    ///
    /// # Errors
    /// [`BadRoute`] names the first route that is not valid or appears twice.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Routes, BadRoute> {
        let mut routes: Vec<Route> = Vec::new();
        for line in lines {
            let bad = |why: String| BadRoute {
                route: line.to_owned(),
                why,
            };
            let route = Route::parse(line).map_err(bad)?;
            if routes.iter().any(|known| known.is_like(&route)) {
                return Err(bad("this prefix appears twice".to_owned()));
            }
            routes.push(route);
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.precedence()));
        Ok(Routes {
            routes,
            pass_unrouted: false,
        })
    }

    /// Returns the same table with writes that no route maps passed (`true`) or refused. Passed writes are not
    /// fenced.
    #[must_use]
    pub fn pass_unrouted(self, pass_unrouted: bool) -> Routes {
        Routes {
            pass_unrouted,
            ..self
        }
    }

    fn find(&self, segments: &[String]) -> Result<Option<ResourceId>, Problem> {
        let Some(route) = self.routes.iter().find(|route| route.is_shape_of(segments)) else {
            return Ok(None);
        };
        route.check(segments)?;
        Ok(Some(ResourceId::new(&route.name(segments))?))
    }
}

impl Resources for Routes {
    fn target(&self, head: &Parts) -> Result<Option<Target>, Problem> {
        let safe = is_safe(&head.method);
        if safe && !head.headers.contains_key(TOKEN_HEADER) {
            return Ok(None);
        }
        match self.find(&segments(head.uri.path())?)? {
            Some(resource) => Ok(Some(Target::new(resource))),
            None if safe || self.pass_unrouted => Ok(None),
            None => Err(Problem::new(
                http::StatusCode::NOT_FOUND,
                Code::NoRoute,
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
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

impl Route {
    fn parse(line: &str) -> Result<Route, String> {
        let (prefix, name) = line
            .split_once('=')
            .ok_or("it must have the form PREFIX=RESOURCE")?;
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
        let probe = vec!["7".to_owned(); route.prefix.len()];
        match ResourceId::new(&route.name(&probe)) {
            Ok(_) => Ok(route),
            Err(invalid) => Err(invalid.to_string()),
        }
    }

    /// Whether a path matches this route, except perhaps for the spelling of its segments. Literals are compared
    /// without regard to case, because some services do so.
    fn is_shape_of(&self, segments: &[String]) -> bool {
        let alike = |(segment, given): (&Segment, &String)| match segment {
            Segment::Literal(text) => text.eq_ignore_ascii_case(given),
            Segment::Any(..) => true,
        };
        segments.len() >= self.prefix.len() && self.prefix.iter().zip(segments).all(alike)
    }

    /// Checks that each segment has its canonical spelling.
    fn check(&self, segments: &[String]) -> Result<(), Problem> {
        for (segment, given) in self.prefix.iter().zip(segments) {
            match segment {
                Segment::Literal(text) if text != given => {
                    return Err(Problem::invalid(format!(
                        "{given:?} in the address could be read as {text:?}: spell it {text}"
                    )));
                }
                Segment::Any(_, kind) if !kind.fits(given) => return Err(kind.refusal(given)),
                _ => {}
            }
        }
        Ok(())
    }

    fn name(&self, segments: &[String]) -> String {
        let text = |piece: &RoutePiece| match piece {
            RoutePiece::Text(text) => text.clone(),
            RoutePiece::Segment(at) => segments.get(*at).cloned().unwrap_or_default(),
        };
        self.name.iter().map(text).collect()
    }

    /// Whether both match the same paths.
    fn is_like(&self, other: &Route) -> bool {
        let same = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Any(..), Segment::Any(..)) => true,
            _ => a == b,
        };
        self.prefix.len() == other.prefix.len() && self.prefix.iter().zip(&other.prefix).all(same)
    }

    /// The precedence: the longer prefix, then more literal segments, then earlier literal segments.
    fn precedence(&self) -> (usize, usize, Vec<bool>) {
        let literal: Vec<bool> = self
            .prefix
            .iter()
            .map(|segment| matches!(segment, Segment::Literal(_)))
            .collect();
        let literals = literal.iter().filter(|literal| **literal).count();
        (self.prefix.len(), literals, literal)
    }
}

impl Segment {
    fn parse(raw: &str) -> Result<Segment, String> {
        let inner = raw
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let Some(inner) = inner else {
            let literal = !raw.contains(['{', '}']) && raw.is_ascii();
            return match segment(raw) {
                Ok(text) if literal => Ok(Segment::Literal(text)),
                _ => Err(format!(
                    "{raw:?} is neither a placeholder nor a segment of a path: {PLACEHOLDER}"
                )),
            };
        };
        let (name, kind) = match inner.split_once(':') {
            Some((name, kind)) => (name, PlaceholderType::named(kind)),
            None => (inner, Some(PlaceholderType::Plain)),
        };
        match kind {
            Some(kind) if is_placeholder(name) => Ok(Segment::Any(name.to_owned(), kind)),
            _ => Err(format!("{raw:?} is not a placeholder: {PLACEHOLDER}")),
        }
    }
}

fn pieces(name: &str, prefix: &[Segment]) -> Result<Vec<RoutePiece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), name);
    while let Some((text, after)) = rest.split_once('{') {
        let (placeholder, after) = after
            .split_once('}')
            .ok_or(format!("a '{{' without a '}}': {PLACEHOLDER}"))?;
        let named =
            |segment: &Segment| matches!(segment, Segment::Any(name, _) if name == placeholder);
        let at = prefix.iter().position(named);
        let at = at.ok_or(format!("the prefix has no {{{placeholder}}}"))?;
        pieces.push(RoutePiece::Text(text.to_owned()));
        pieces.push(RoutePiece::Segment(at));
        rest = after;
    }
    if rest.contains('}') {
        return Err(format!("a '}}' without a '{{': {PLACEHOLDER}"));
    }
    pieces.push(RoutePiece::Text(rest.to_owned()));
    Ok(pieces)
}

fn is_placeholder(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

const PLACEHOLDER: &str = "a placeholder is a whole segment, {id} or {id:TYPE}; its name has letters, digits \
    and _, and its type is one of uint, uint64, int, uuid, slug and name";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(routes: &Routes, method: &str, path: &str) -> Result<Option<String>, Code> {
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
    fn the_longest_prefix_decides() {
        let routes = Routes::parse([
            "/=all",
            "/accounts/{id:uint}=account:{id}",
            "/accounts/admin=admins",
            "/accounts/{id:uint}/cards/{card}=card:{card}@{id}",
        ])
        .unwrap();
        for (path, resource) in [
            ("/", "all"),
            ("/x/y", "all"),
            ("/accounts", "all"),
            ("/accountsx/7", "all"),
            ("/accounts/7", "account:7"),
            ("/accounts/7/", "account:7"),
            ("/accounts/7?x=1", "account:7"),
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
    fn an_address_that_could_be_read_as_another_is_refused() {
        let routes = Routes::parse(["/a/{id}={id}", "/a/{id}/x/{n:uint}=n", "/z=z"]).unwrap();
        for path in [
            "/a/07",
            "/a/%37",
            "/a/7;v=1",
            "/a/B",
            "/A/b",
            "/Z",
            "/a/b/x/01/c",
            "/a/b/c%2Fd",
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
            for routes in [&routes, &routes.clone().pass_unrouted(true)] {
                assert_eq!(found(routes, "PUT", path), Err(Code::Invalid), "{path}");
                assert_eq!(found(routes, "GET", path), Ok(None), "{path}");
            }
        }
        let with_all = Routes::parse(["/=all", "/a/{id:uint}={id}"]).unwrap();
        let put = |path| found(&with_all, "PUT", path);
        assert_eq!(put("/a/7"), Ok(Some("7".to_owned())));
        assert_eq!(put("/a/07"), Err(Code::Invalid), "it does not fall through");
        assert_eq!(put("/b/07"), Ok(Some("all".to_owned())));
        assert_eq!(found(&routes, "PUT", "/b/c"), Err(Code::NoRoute));
        assert_eq!(found(&routes.pass_unrouted(true), "PUT", "/b/c"), Ok(None));
    }

    #[test]
    fn a_bad_route_is_refused_with_the_reason() {
        for (lines, why) in [
            (&["/a"][..], "PREFIX=RESOURCE"),
            (&["a=b"], "start with '/'"),
            (&["/a="], "is empty"),
            (&["/a=ä"], "not printable ASCII"),
            (&["/{id=x"], "neither a placeholder"),
            (&["/a{id}=x"], "neither a placeholder"),
            (&["/{}=x"], "not a placeholder"),
            (&["/{id}={other}"], "no {other}"),
            (&["/{id}={id"], "without a '}'"),
            (&["/{id}=id}"], "without a '{'"),
            (&["/a/../b=x"], "nor a segment"),
            (&["/{a}=x", "/{b}=y"], "appears twice"),
            (&["/{a:uint}=x", "/{b:slug}=y"], "appears twice"),
            (&["/{a:number}=x"], "uint, uint64, int, uuid, slug and name"),
            (&["/ä=x"], "nor a segment"),
        ] {
            let refused = Routes::parse(lines.iter().copied())
                .unwrap_err()
                .to_string();
            assert!(refused.contains(why), "{lines:?}: {refused}");
        }
    }
}
