//! The checks, one function each, named after the property that they prove.

use palisade_core::fence::{Pass, Reject, Sequence};
use palisade_core::{LockName, slot_key};

use crate::conformance::frozen::{
    a_frozen_writer_loses_nothing, a_write_given_up_and_repeated_is_there_once,
    a_writer_that_dies_leaves_all_or_nothing,
};
use crate::conformance::race::{late_write_once, racing_holders};
use crate::conformance::steps::{
    Failure, KEY, Probe, RejectionRecorder, admitted, authority, reads, rejected, repeated, stale,
    t,
};
use crate::conformance::{Habit, Report, Subject};
use crate::fence::{Edit, Write};

/// Runs each named check and records its result.
macro_rules! checks {
    ($subject:expr, $report:expr; $($check:ident $(($habit:expr))? $(if $when:expr)?;)+) => {$(
        if true $(&& $when)? {
            $report.note(stringify!($check), $check($subject $(, $habit)?).await);
        }
    )+};
}

/// The checks for every fence.
pub(super) async fn common<S: Subject>(s: &S, habit: Habit, report: &mut Report) {
    checks! { s, report;
        a_fresh_resource_is_empty;
        a_zombie_write_is_rejected_and_changes_nothing;
        a_late_write_after_a_claim_is_rejected;
        a_late_write_after_a_tokened_read_is_rejected;
        a_stale_read_is_rejected;
        a_stale_claim_is_rejected;
        a_late_write_is_reported_once if habit.reports;
        readers_of_one_phase_pass_together_and_a_late_writer_does_not;
        a_zombie_reader_is_rejected;
        a_slots_zombie_is_rejected_beside_live_holders;
        a_write_claims_by_itself;
        claiming_again_is_admitted;
        a_released_token_counts_until_a_higher_one_comes;
        resources_are_tracked_apart;
        keys_of_a_resource_share_its_fence;
        an_observer_reads_without_a_token;
        a_write_without_a_token_is_rejected_once_fenced;
        deleting_nothing_did_not_succeed;
        the_last_token_is_a_token if habit.max_jump.is_none();
        a_leap_beyond_the_bound_is_rejected(habit) if habit.max_jump.is_some();
        another_authority_is_an_error if habit.authorities;
        a_named_authority_binds_and_naming_none_is_an_error if habit.authorities;
        the_forced_schedule_loses_nothing;
        racing_holders_lose_no_acknowledged_write(habit);
        a_frozen_writer_loses_nothing;
        a_writer_that_dies_leaves_all_or_nothing;
    }
}

/// The checks for fences that admit equal tokens repeatedly.
pub(super) async fn many_writes<S: Subject>(s: &S, habit: Habit, report: &mut Report) {
    checks! { s, report;
        the_same_token_writes_again;
        a_repeated_number_is_carried_out_once if habit.numbers;
        a_lower_number_is_rejected if habit.numbers;
        a_gap_in_the_numbers_is_admitted if habit.numbers;
        numbers_start_again_under_a_higher_token if habit.numbers;
        a_number_is_not_reused_for_another_write if habit.numbers;
        an_append_is_repeated_safely if habit.appends && habit.numbers;
        a_write_given_up_and_repeated_is_there_once(habit) if habit.numbers;
    }
}

/// The checks for fences that admit one write for each grant.
pub(super) async fn strict<S: Subject>(s: &S, habit: Habit, report: &mut Report) {
    checks! { s, report;
        a_second_write_is_already_written_and_not_stale;
        a_claim_leaves_the_one_write;
        a_repeat_of_the_one_write_is_recognised if habit.numbers;
        a_higher_token_writes_once_more;
        a_write_given_up_and_repeated_is_there_once(habit) if habit.numbers;
    }
}

async fn a_fresh_resource_is_empty<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "fresh").await?;
    r.holds(None).await?;
    reads(r.read(1).await?, None)
}

async fn a_zombie_write_is_rejected_and_changes_nothing<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "zombie").await?;
    admitted(r.put(33, "old").await?)?;
    admitted(r.put(34, "new").await?)?;
    stale(r.put(33, "zombie").await?, 33, 34)?;
    r.holds(Some("new")).await
}

async fn a_late_write_after_a_claim_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "late-after-claim").await?;
    admitted(r.put(1, "old").await?)?;
    admitted(r.claim(2).await?)?;
    stale(r.put(1, "late").await?, 1, 2)?;
    reads(r.read(2).await?, Some("old"))
}

async fn a_late_write_after_a_tokened_read_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "late-after-read").await?;
    admitted(r.put(1, "old").await?)?;
    reads(r.read(2).await?, Some("old"))?;
    stale(r.put(1, "late").await?, 1, 2)?;
    r.holds(Some("old")).await
}

/// A refusal reaches the reporter of its pass. An admitted operation, and one that is refused for another reason, do not.
async fn a_late_write_is_reported_once<S: Subject>(s: &S) -> Result<(), Failure> {
    let (r, heard) = (
        Probe::fresh(s, "reported").await?,
        RejectionRecorder::default(),
    );
    let (old, new) = (t(33)?, t(34)?);
    let shown = |token| Pass::new(token).reporting_to(&heard);
    admitted(r.put(33, "old").await?)?;
    admitted(r.put(34, "new").await?)?;
    admitted(r.claim_as(shown(new)).await?)?;
    let late = Write::new(KEY, Edit::Put(b"late"));
    stale(r.write_as(shown(old), late).await?, 33, 34)?;
    stale(r.write_as(old.into(), late).await?, 33, 34)?;
    let heard = heard.take();
    match heard.as_slice() {
        [(33, 34, operation)] if !operation.is_empty() => Ok(()),
        _ => Err(format!("reported as {heard:?}, not once as 33 < 34")),
    }
}

/// Readers of one phase have one token, so a fence needs no rule for them: all of them claim and read, and the writer before
/// them is late (S1 – S3).
async fn readers_of_one_phase_pass_together_and_a_late_writer_does_not<S: Subject>(
    s: &S,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "phase").await?;
    admitted(r.put(1, "old").await?)?;
    for _reader in ["first", "second"] {
        admitted(r.claim(3).await?)?;
        reads(r.read(3).await?, Some("old"))?;
    }
    stale(r.put(1, "late").await?, 1, 3)?;
    reads(r.read(3).await?, Some("old"))
}

/// A reader whose phase is over reads nothing that a later writer wrote, and does not lower the fence.
async fn a_zombie_reader_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "zombie-reader").await?;
    admitted(r.claim(3).await?)?;
    admitted(r.claim(5).await?)?;
    stale(r.read(3).await?, 3, 5)?;
    stale(r.claim(3).await?, 3, 5)?;
    admitted(r.put(5, "new").await?)?;
    stale(r.read(3).await?, 3, 5)?;
    r.holds(Some("new")).await
}

/// Each slot of a semaphore has a ratchet of its own: its next holder fences its former one, and no other live holder,
/// whichever tokens they have (P3).
async fn a_slots_zombie_is_rejected_beside_live_holders<S: Subject>(s: &S) -> Result<(), Failure> {
    let lock = LockName::new("gpu").map_err(|invalid| invalid.to_string())?;
    let mut slots = Vec::new();
    for (slot, token) in [(1, 5), (2, 7), (3, 9)] {
        let key = slot_key(&lock, slot).map_err(|invalid| invalid.to_string())?;
        let slot = Probe::fresh(s, key.as_str()).await?;
        admitted(slot.claim(token).await?)?;
        slots.push((slot, token));
    }
    let (first, _) = slots.first().ok_or("the check's own slots")?;
    admitted(first.claim(11).await?)?;
    stale(first.put(5, "late").await?, 5, 11)?;
    stale(first.read(5).await?, 5, 11)?;
    first.holds(None).await?;
    for (slot, token) in &slots[1..] {
        reads(slot.read(*token).await?, None)?;
        admitted(slot.put(*token, "live").await?)?;
    }
    admitted(first.put(11, "new").await?)?;
    first.holds(Some("new")).await
}

async fn a_stale_read_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "stale-read").await?;
    admitted(r.claim(5).await?)?;
    stale(r.read(4).await?, 4, 5)
}

async fn a_stale_claim_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "stale-claim").await?;
    admitted(r.put(5, "x").await?)?;
    stale(r.claim(4).await?, 4, 5)
}

async fn a_write_claims_by_itself<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "write-claims").await?;
    admitted(r.put(5, "x").await?)?;
    stale(r.read(4).await?, 4, 5)
}

async fn claiming_again_is_admitted<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "claim-again").await?;
    admitted(r.claim(5).await?)?;
    admitted(r.claim(5).await?)?;
    reads(r.read(5).await?, None)
}

async fn a_released_token_counts_until_a_higher_one_comes<S: Subject>(
    s: &S,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "released").await?;
    admitted(r.claim(7).await?)?;
    // The authority has long released the lock; the fence orders, it does not enforce expiry.
    admitted(r.put(7, "after the release").await?)?;
    admitted(r.claim(8).await?)?;
    stale(r.put(7, "too late").await?, 7, 8)
}

async fn resources_are_tracked_apart<S: Subject>(s: &S) -> Result<(), Failure> {
    let (a, b) = (
        Probe::fresh(s, "apart-a").await?,
        Probe::fresh(s, "apart-b").await?,
    );
    admitted(a.put(9, "a").await?)?;
    admitted(b.put(2, "b").await?)?;
    a.holds(Some("a")).await?;
    b.holds(Some("b")).await
}

async fn keys_of_a_resource_share_its_fence<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "keys").await?;
    admitted(r.write(2, Write::new("/other", Edit::Put(b"x"))).await?)?;
    stale(r.put(1, "late").await?, 1, 2)
}

async fn an_observer_reads_without_a_token<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "observer").await?;
    admitted(r.put(3, "seen").await?)?;
    r.holds(Some("seen")).await?;
    admitted(r.claim(4).await?)?;
    r.holds(Some("seen")).await
}

async fn a_write_without_a_token_is_rejected_once_fenced<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "tokenless").await?;
    admitted(r.put(3, "fenced").await?)?;
    rejected(
        r.tokenless("forgot").await?,
        &Reject::Tokenless { highest: t(3)? },
    )?;
    r.holds(Some("fenced")).await
}

async fn deleting_nothing_did_not_succeed<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "zero-rows").await?;
    admitted(r.claim(1).await?)?;
    rejected(
        r.write(1, Write::new(KEY, Edit::Delete)).await?,
        &Reject::Missing,
    )?;
    admitted(r.put(1, "x").await?)?;
    admitted(r.claim(2).await?)?;
    admitted(r.write(2, Write::new(KEY, Edit::Delete)).await?)?;
    r.holds(None).await
}

async fn the_last_token_is_a_token<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "last-token").await?;
    let last = palisade_core::Token::MAX.get();
    admitted(r.put(last, "x").await?)?;
    stale(r.put(last - 1, "late").await?, last - 1, last)?;
    r.holds(Some("x")).await
}

async fn a_leap_beyond_the_bound_is_rejected<S: Subject>(
    s: &S,
    habit: Habit,
) -> Result<(), Failure> {
    let Some(bound) = habit.max_jump else {
        return Ok(());
    };
    let r = Probe::fresh(s, "leap").await?;
    rejected(
        r.claim(bound + 1).await?,
        &Reject::Jump {
            highest: None,
            bound,
        },
    )?;
    admitted(r.put(1, "x").await?)?;
    let jump = Reject::Jump {
        highest: Some(t(1)?),
        bound,
    };
    rejected(r.put(bound + 2, "poison").await?, &jump)?;
    admitted(r.claim(bound + 1).await?)?;
    r.holds(Some("x")).await
}

async fn another_authority_is_an_error<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "authority").await?;
    let (ours, theirs) = (authority("ours")?, authority("theirs")?);
    admitted(r.claim_as(Pass::new(t(5)?).by(&ours)).await?)?;
    let wrong = Reject::WrongAuthority {
        bound: ours.clone(),
    };
    for token in [4, 5, 6] {
        rejected(r.claim_as(Pass::new(t(token)?).by(&theirs)).await?, &wrong)?;
    }
    admitted(r.claim_as(Pass::new(t(6)?).by(&ours)).await?)
}

async fn a_named_authority_binds_and_naming_none_is_an_error<S: Subject>(
    s: &S,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "binds").await?;
    let ours = authority("ours")?;
    admitted(r.put(5, "x").await?)?;
    admitted(r.claim_as(Pass::new(t(5)?).by(&ours)).await?)?;
    rejected(
        r.put(6, "nameless").await?,
        &Reject::WrongAuthority {
            bound: ours.clone(),
        },
    )?;
    r.holds(Some("x")).await
}

async fn the_same_token_writes_again<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "equal").await?;
    admitted(r.put(5, "one").await?)?;
    admitted(r.put(5, "two").await?)?;
    r.holds(Some("two")).await
}

async fn a_repeated_number_is_carried_out_once<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "repeat").await?;
    admitted(r.numbered(5, 1, Edit::Put(b"v1")).await?)?;
    repeated(r.numbered(5, 1, Edit::Put(b"v1")).await?)?;
    r.holds(Some("v1")).await
}

/// The duplicate of FIELD (b): v1 was sent twice, v2 was acknowledged, then the first copy of v1 arrives.
async fn a_lower_number_is_rejected<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "duplicate").await?;
    admitted(r.numbered(5, 1, Edit::Put(b"v1")).await?)?;
    admitted(r.numbered(5, 2, Edit::Put(b"v2")).await?)?;
    let last = Sequence::new(2).ok_or("the check's own number")?;
    rejected(
        r.numbered(5, 1, Edit::Put(b"v1")).await?,
        &Reject::SequenceStale { last },
    )?;
    r.holds(Some("v2")).await
}

async fn a_gap_in_the_numbers_is_admitted<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "gap").await?;
    admitted(r.numbered(5, 1, Edit::Put(b"v1")).await?)?;
    admitted(r.numbered(5, 10, Edit::Put(b"v10")).await?)?;
    r.holds(Some("v10")).await
}

async fn numbers_start_again_under_a_higher_token<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "again").await?;
    admitted(r.numbered(5, 10, Edit::Put(b"old")).await?)?;
    admitted(r.numbered(6, 0, Edit::Put(b"new")).await?)?;
    stale(r.numbered(5, 11, Edit::Put(b"late")).await?, 5, 6)?;
    r.holds(Some("new")).await
}

async fn a_number_is_not_reused_for_another_write<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "reused").await?;
    admitted(r.numbered(5, 1, Edit::Put(b"first")).await?)?;
    let last = Sequence::new(1).ok_or("the check's own number")?;
    let other = r.numbered(5, 1, Edit::Put(b"other")).await?;
    rejected(other, &Reject::SequenceReused { last })?;
    r.holds(Some("first")).await
}

async fn an_append_is_repeated_safely<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "append").await?;
    admitted(r.numbered(5, 1, Edit::Append(b"a")).await?)?;
    admitted(r.numbered(5, 2, Edit::Append(b"b")).await?)?;
    repeated(r.numbered(5, 2, Edit::Append(b"b")).await?)?;
    r.holds(Some("ab")).await
}

async fn a_second_write_is_already_written_and_not_stale<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "once").await?;
    admitted(r.put(5, "one").await?)?;
    rejected(r.put(5, "two").await?, &Reject::AlreadyWritten)?;
    r.holds(Some("one")).await
}

async fn a_claim_leaves_the_one_write<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "once-after-claim").await?;
    admitted(r.claim(5).await?)?;
    reads(r.read(5).await?, None)?;
    admitted(r.put(5, "one").await?)?;
    rejected(r.put(5, "two").await?, &Reject::AlreadyWritten)
}

async fn a_repeat_of_the_one_write_is_recognised<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "once-repeated").await?;
    admitted(r.numbered(5, 1, Edit::Put(b"one")).await?)?;
    repeated(r.numbered(5, 1, Edit::Put(b"one")).await?)?;
    rejected(
        r.numbered(5, 2, Edit::Put(b"two")).await?,
        &Reject::AlreadyWritten,
    )?;
    r.holds(Some("one")).await
}

async fn a_higher_token_writes_once_more<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "once-more").await?;
    admitted(r.put(5, "five").await?)?;
    admitted(r.put(6, "six").await?)?;
    rejected(r.put(6, "again").await?, &Reject::AlreadyWritten)?;
    r.holds(Some("six")).await
}

async fn the_forced_schedule_loses_nothing<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "schedule").await?;
    match late_write_once(&r, 1).await? {
        0 => Ok(()),
        lost => Err(format!("{lost} acknowledged write lost")),
    }
}

async fn racing_holders_lose_no_acknowledged_write<S: Subject>(
    s: &S,
    habit: Habit,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "race").await?;
    racing_holders(&r, habit.rounds).await
}
