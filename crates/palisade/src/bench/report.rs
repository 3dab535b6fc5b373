//! The report of a benchmark run.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::load::Measured;
use super::settings::{LoadKind, Settings};

/// The numbers of one run.
pub(super) struct Report<'a> {
    settings: &'a Settings,
    measured: Measured,
    tokens: Tokens,
}

/// Ratios of mode sets.
struct Sets {
    set: f64,
    beside: f64,
    rate: f64,
    /// The sets with a bound, and those granted later.
    bounded: usize,
    late: usize,
    /// The wait of sets that waited, to the bound of each: the median, and the largest.
    to_bound: (f64, f64),
}

/// The result of the check of the tokens.
struct Tokens {
    count: usize,
    rising: bool,
    distinct: bool,
}

impl<'a> Report<'a> {
    pub(super) fn new(settings: &'a Settings, measured: Measured) -> Report<'a> {
        let tokens = Tokens::check(&measured.tokens);
        Report {
            settings,
            measured,
            tokens,
        }
    }

    /// The authority's fault, if there is one.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        if !(self.tokens.rising && self.tokens.distinct) {
            return Some("tokens were issued twice or out of order");
        }
        (self.late() > 0).then_some("a set was granted later than those ahead of it allow")
    }

    /// How many sets were granted later than their bounds.
    fn late(&self) -> usize {
        let waits = self.measured.waits.iter();
        waits.filter(|wait| wait.waited > wait.bound).count()
    }

    fn per_second(&self) -> f64 {
        let measured = &self.measured;
        let count = measured.acquire.len() + measured.beside.len() + measured.set.len();
        count as f64 / measured.elapsed.as_secs_f64()
    }

    /// A set's wait and its cost to other locks, as ratios to a lock without sets; none if a measurement is missing.
    fn sets(&self) -> Option<Sets> {
        let Measured {
            acquire,
            beside,
            set,
            waits,
            ..
        } = &self.measured;
        if acquire.is_empty() || beside.is_empty() || set.is_empty() {
            return None;
        }
        let median = |histogram: &Histogram<u64>| histogram.value_at_quantile(0.5) as f64;
        let mut to_bound: Vec<f64> = waits
            .iter()
            .filter(|wait| wait.bound > 0)
            .map(|wait| wait.waited as f64 / wait.bound as f64)
            .collect();
        to_bound.sort_by(f64::total_cmp);
        let at = |place: usize| to_bound.get(place).copied().unwrap_or_default();
        Some(Sets {
            bounded: waits.len(),
            late: self.late(),
            to_bound: (at(to_bound.len() / 2), at(to_bound.len().saturating_sub(1))),
            set: median(set) / median(acquire),
            beside: median(beside) / median(acquire),
            rate: beside.len() as f64 / acquire.len() as f64,
        })
    }

    fn rows(&self) -> Vec<(&'static str, &Histogram<u64>)> {
        let first = if self.settings.mode == LoadKind::Renew {
            "renew"
        } else {
            "acquire"
        };
        let measured = &self.measured;
        let rows = [
            (first, &measured.acquire),
            ("beside sets", &measured.beside),
            ("set of 8", &measured.set),
            ("release", &measured.release),
            ("hand-off", &measured.hand_off),
        ];
        rows.into_iter()
            .filter(|(_, histogram)| !histogram.is_empty())
            .collect()
    }

    pub(super) fn json(&self) -> Value {
        let latencies: serde_json::Map<String, Value> = self
            .rows()
            .into_iter()
            .map(|(name, histogram)| (name.into(), latency(histogram)))
            .collect();
        json!({
            "mode": format!("{:?}", self.settings.mode).to_lowercase(),
            "clients": self.settings.clients,
            "in_flight": self.settings.in_flight,
            "seconds": self.measured.elapsed.as_secs_f64(),
            "unit": self.unit(),
            "per_second": self.per_second(),
            "latency_us": latencies,
            "sets": self.sets().map(|sets| json!({
                "median_to_alone": sets.set, "beside_to_alone": sets.beside, "rate_beside_to_alone": sets.rate,
                "bounded": sets.bounded, "late": sets.late,
                "median_wait_to_bound": sets.to_bound.0, "longest_wait_to_bound": sets.to_bound.1,
            })),
            "tokens": {"count": self.tokens.count, "rising": self.tokens.rising, "distinct": self.tokens.distinct},
        })
    }

    fn unit(&self) -> &'static str {
        if self.settings.mode == LoadKind::Renew {
            "renewals"
        } else {
            "acquire+release pairs"
        }
    }

    pub(super) fn text(&self) -> String {
        let Settings {
            clients, in_flight, ..
        } = self.settings;
        let seconds = self.measured.elapsed.as_secs_f64();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{clients} connections x {in_flight} in flight, {seconds:.1} s"
        );
        let _ = writeln!(text, "{:.0} {} per second", self.per_second(), self.unit());
        let _ = writeln!(
            text,
            "\nlatency (us)      p50       p90       p99     p99.9       max"
        );
        for (name, histogram) in self.rows() {
            let _ = write!(text, "{name:<11}");
            for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
                let _ = write!(
                    text,
                    "{:>10.0}",
                    micros(histogram.value_at_quantile(quantile))
                );
            }
            text.push('\n');
        }
        if let Some(sets) = self.sets() {
            let Sets {
                set,
                beside,
                rate,
                bounded,
                late,
                to_bound: (median, longest),
            } = sets;
            let _ = writeln!(
                text,
                "\nmedians: a set of 8 waits {set:.1} times as long as one lock without sets; beside sets, one lock waits \
                 {beside:.1} times as long, and is granted {rate:.2} times as often\n\
                 {bounded} sets checked, {late} granted later than those ahead of them allow; wait ÷ bound: {median:.2} in the \
                 median, {longest:.2} at most"
            );
        }
        let _ = writeln!(text, "\n{}", self.tokens.sentence());
        text
    }
}

impl Tokens {
    /// Checks that tokens rise within each loop, and that none appears twice in all of them.
    fn check(loops: &[Vec<u64>]) -> Tokens {
        let rising = loops
            .iter()
            .all(|tokens| tokens.windows(2).all(|pair| pair[0] < pair[1]));
        let mut all: Vec<u64> = loops.iter().flatten().copied().collect();
        all.sort_unstable();
        let distinct = all.windows(2).all(|pair| pair[0] != pair[1]);
        Tokens {
            count: all.len(),
            rising,
            distinct,
        }
    }

    fn sentence(&self) -> String {
        match (self.rising, self.distinct) {
            (true, true) => format!(
                "{} tokens checked: all distinct, rising for each client",
                self.count
            ),
            (false, _) => "A CLIENT SAW TOKENS FALL: this authority is broken".into(),
            (_, false) => "A TOKEN WAS ISSUED TWICE: this authority is broken".into(),
        }
    }
}

fn latency(histogram: &Histogram<u64>) -> Value {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    json!({
        "count": histogram.len(),
        "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999),
        "max": micros(histogram.max()), "mean": histogram.mean() / 1_000.0,
    })
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_and_a_falling_token_are_found() {
        assert!(Tokens::check(&[vec![1, 4], vec![2, 3]]).distinct);
        assert!(!Tokens::check(&[vec![1, 4], vec![2, 4]]).distinct);
        assert!(!Tokens::check(&[vec![4, 1]]).rising);
    }
}
