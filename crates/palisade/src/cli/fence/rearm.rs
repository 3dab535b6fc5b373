//! `palisade fence rearm`: the questions before it, then the re-arming.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;
use palisade_core::{AuthorityId, Token};
use palisade_fence::Rearm;
use serde_json::json;

use super::super::failure::Failure;
use super::super::output::Out;
use super::super::shell::shell_word;
use super::super::value;
use super::resources::{LocatedResources, ResourceLocation};

/// If a floor is further than this above every token seen, the operator must confirm it. It is more than an authority issues
/// between two readings of a fence, and less than a mistyped digit of a large token.
const FAR: u64 = 1 << 20;

#[derive(Args, Clone, Debug)]
pub(crate) struct RearmArgs {
    /// The resource.
    resource: String,
    /// The lowest token that is admitted again: one that the authority issued for this, not a holder's.
    #[arg(long, value_name = "N", value_parser = value::token)]
    floor: Token,
    /// Lower the fence from its current token, which shows that you have looked: no authority issued it (a poisoned fence), or
    /// another authority's tokens count from now on.
    #[arg(long, value_name = "N", value_parser = value::token)]
    lower_from: Option<Token>,
    /// The authority whose tokens count from now on [default: the first one that a holder names]. If its tokens are below the
    /// fence's, add --lower-from.
    #[arg(long, value_name = "ID", value_parser = authority)]
    authority_id: Option<AuthorityId>,
    /// Re-arm without a question, also to a floor far above every token that was seen.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    at: ResourceLocation,
}

fn authority(text: &str) -> Result<AuthorityId, String> {
    AuthorityId::new(text).map_err(|invalid| invalid.to_string())
}

/// The question to the operator, with the facts for the answer.
struct Question {
    resource: String,
    floor: Token,
    /// The highest token at the resource, and at all fences of the place.
    highest: Option<Token>,
    seen: Option<Token>,
}

impl Question {
    fn is_far(&self) -> bool {
        let seen = self.seen.map_or(0, Token::get);
        self.floor.get().saturating_sub(seen) > FAR
    }

    fn text(&self) -> String {
        let Question {
            resource, floor, ..
        } = self;
        let stands = match self.highest {
            Some(highest) => format!(
                "The fence of {resource} is at token {highest}. Re-arming forgets which writes it has seen, so a late duplicate passes."
            ),
            None => format!("The fence of {resource} has seen no token yet."),
        };
        let seen = match self.seen {
            Some(seen) if self.is_far() => {
                format!("\nThe highest token that was ever seen here is {seen}, far below {floor}.")
            }
            None if self.is_far() => "\nNo token was ever seen here.".to_owned(),
            _ => String::new(),
        };
        format!(
            "{stands}{seen}\nWith the floor {floor}, every holder is refused until the authority issues {floor} or a \
             higher token.\nDid the authority issue {floor} for this, and to no holder?"
        )
    }
}

pub(super) async fn rearm(args: &RearmArgs, out: Out) -> Result<(), Failure> {
    let mut resources = LocatedResources::open(&args.at).await?;
    if !args.yes {
        ask(&mut resources, args).await?;
    }
    let with = Rearm {
        floor: args.floor,
        authority: args.authority_id.as_ref(),
        lower_from: args.lower_from,
    };
    resources.rearm(&args.resource, &with).await?;
    let (resource, floor) = (&args.resource, args.floor);
    if out.json {
        return out.value(&json!({"resource": resource, "floor": floor.get()}));
    }
    out.text(&format!(
        "{resource} refuses every fencing token below {floor}"
    ))
}

/// Asks on a terminal. Without one, only a floor that is far away needs `--yes`.
async fn ask(resources: &mut LocatedResources, args: &RearmArgs) -> Result<(), Failure> {
    let highest = resources.show(&args.resource).await?;
    let all = resources.all("").await?;
    let question = Question {
        resource: args.resource.clone(),
        floor: args.floor,
        highest: highest.and_then(|state| state.highest()),
        seen: all.iter().filter_map(|(one, _)| one.state.highest()).max(),
    };
    if !io::stdin().is_terminal() {
        if !question.is_far() {
            return Ok(());
        }
        let (resource, floor) = (shell_word(&args.resource), args.floor);
        let again = format!("palisade fence rearm {resource} --floor {floor} --yes");
        let why = format!(
            "{}; nothing has changed",
            question.text().replace('\n', " ")
        );
        return Err(Failure::usage(why).hint(format!("if it did, type: {again}")));
    }
    let mut screen = io::stderr();
    write!(screen, "{}\nType `yes` to go on: ", question.text())?;
    screen.flush()?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed)?;
    match typed.trim() {
        "yes" => Ok(()),
        _ => Err(Failure::local("not confirmed; nothing has changed")),
    }
}
