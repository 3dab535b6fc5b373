//! From a request to the resource it acts on.

use http::Method;
use http::request::Parts;
use palisade_core::Code;

use crate::http::spelling::{Kind, segment, segments};
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

/// A table of prefixes: `/accounts/{id:uint}=account:{id}`. The longest that has the shape of a path
/// counts, and of two equally long ones the one that spells out more.
///
/// A placeholder has a type, and takes the one spelling in which that type writes a value (rule F11):
///
/// | placeholder | takes |
/// |---|---|
/// | `{id:uint}`, `{id:uint64}`, `{id:int}` | integers up to 2^53 − 1, 2^64 − 1, ±(2^53 − 1): no plus, no leading zeros |
/// | `{id:uuid}` | 8-4-4-4-12 hexadecimal digits in small letters |
/// | `{id:slug}` | small letters, digits, `-`, `_`, beginning with a letter |
/// | `{id:name}` | letters, digits, `-`, `_`, `.`, `~`: where the service compares names byte by byte |
/// | `{id}` | a `uint`, a `uuid`, or a `slug` that cannot be read as either |
///
/// Any other spelling there is refused with the one that is meant; it does not fall through to a shorter
/// route. So are, in every path that has to be mapped, all that a service may read in more than one way:
/// `//`, `.`, `..`, `;`, an encoded slash or percent sign, what is encoded without need, spaces at an end,
/// and words of a route in other letters (`/Accounts`). The path that is sent on is the one that was
/// compared. Queries, headers and bodies are not looked at: a service that takes the name of what it
/// changes from there needs a route for all of it, or a function of the whole head.
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
    Any(String, Kind),
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
        let probe = vec!["7".to_owned(); route.prefix.len()];
        match ResourceId::new(&route.name(&probe)) {
            Ok(_) => Ok(route),
            Err(invalid) => Err(invalid.to_string()),
        }
    }

    /// Whether a path is of this route but for the spelling of its segments. Words are compared without
    /// regard to case here: there are services that do so.
    fn is_shape_of(&self, segments: &[String]) -> bool {
        let alike = |(segment, given): (&Segment, &String)| match segment {
            Segment::Literal(text) => text.eq_ignore_ascii_case(given),
            Segment::Any(..) => true,
        };
        segments.len() >= self.prefix.len() && self.prefix.iter().zip(segments).all(alike)
    }

    /// Whether each segment is spelled as it must be.
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
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Segment(at) => segments.get(*at).cloned().unwrap_or_default(),
        };
        self.name.iter().map(text).collect()
    }

    /// Both have the shape of the same paths.
    fn is_like(&self, other: &Route) -> bool {
        let same = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Any(..), Segment::Any(..)) => true,
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
        let Some(inner) = inner else {
            let literal = !raw.contains(['{', '}']) && raw.is_ascii();
            return match segment(raw) {
                Ok(text) if literal => Ok(Segment::Literal(text)),
                _ => Err(format!(
                    "{raw:?} is no placeholder and no segment of a path: {PLACEHOLDER}"
                )),
            };
        };
        let (name, kind) = match inner.split_once(':') {
            Some((name, kind)) => (name, Kind::named(kind)),
            None => (inner, Some(Kind::Plain)),
        };
        match kind {
            Some(kind) if is_placeholder(name) => Ok(Segment::Any(name.to_owned(), kind)),
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
            |segment: &Segment| matches!(segment, Segment::Any(name, _) if name == placeholder);
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

const PLACEHOLDER: &str = "a placeholder is a whole segment, {id} or {id:TYPE}, its name of letters, \
    digits and _, its type one of uint, uint64, int, uuid, slug and name";

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
    fn the_longest_prefix_counts() {
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
    fn what_could_be_read_as_another_address_is_refused() {
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
            (&["/{a:uint}=x", "/{b:slug}=y"], "told twice"),
            (&["/{a:number}=x"], "uint, uint64, int, uuid, slug and name"),
            (&["/ä=x"], "no segment"),
        ] {
            let refused = Routes::parse(lines.iter().copied())
                .unwrap_err()
                .to_string();
            assert!(refused.contains(why), "{lines:?}: {refused}");
        }
    }
}
