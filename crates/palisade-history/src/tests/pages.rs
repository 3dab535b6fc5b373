//! The pages of ended grants and their index, beside a list that does the same naively.

use std::sync::Arc;
use std::time::Duration;

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use crate::codec::encode;
use crate::ended::{BY_LOCK, ENDED, Ended, PlacesByLock, Size, cost, note};
use crate::ledger::{GAPS, LATE, OPEN, REFUSED};
use crate::{Bounds, End, HoldMode, How, Query, Reader, Row};

const LOCKS: [&str; 4] = ["hot", "hot/1", "b", "another"];

/// A store, and the list of what it should have, the oldest end first.
struct Twin {
    db: Arc<Database>,
    size: Size,
    list: Vec<(u64, Row)>,
    last: u64,
    random: u64,
}

impl Twin {
    fn new(seed: u64) -> Twin {
        let db = Database::builder()
            .create_with_backend(InMemoryBackend::new())
            .unwrap();
        let write = db.begin_write().unwrap();
        write.open_table(OPEN).unwrap();
        write.open_table(GAPS).unwrap();
        write.open_table(REFUSED).unwrap();
        write.open_table(LATE).unwrap();
        write.open_table(ENDED).unwrap();
        write.open_table(BY_LOCK).unwrap();
        write.commit().unwrap();
        Twin {
            db: Arc::new(db),
            size: Size::default(),
            list: Vec::new(),
            last: 0,
            random: seed,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % bound
    }

    /// Half of the grants are of one lock. Most tokens rise, as those of exclusive grants; some are those of permits.
    fn row(&mut self) -> Row {
        let lock = match self.below(2) {
            0 => LOCKS[0],
            _ => LOCKS[self.below(4) as usize],
        };
        let token = match self.below(8) {
            0 => self.below(self.last + 1),
            1 => self.last / 10,
            _ => self.last,
        };
        let metadata = "m".repeat(self.below(200) as usize);
        Row {
            grant: token,
            token,
            lock: lock.into(),
            mode: HoldMode::Permits,
            slots: 0,
            client: "x".into(),
            principal: [7; 16],
            metadata: (self.below(50) > 0).then_some(metadata),
            ttl_ms: None,
            waited_ms: None,
            granted_ms: 0,
            end: Some(End {
                at_ms: self.last,
                renewed_ms: 0,
                how: How::Released,
                by: None,
                reason: (self.below(100) == 0).then(|| "r".repeat(9_000)),
                successor: None,
                closed_ms: None,
            }),
        }
    }

    /// Ends in the order of their revisions, and what the bounds leave of them.
    fn commit(&mut self, bounds: Bounds) {
        let mut rows = Vec::new();
        for _ in 0..=self.below(60) {
            self.last += 1 + self.below(3);
            rows.push((self.last, self.row()));
        }
        // Revisions after the last end, too.
        self.last += self.below(40);
        let write = self.db.begin_write().unwrap();
        let mut ended = Ended::open(&write, self.size).unwrap();
        let mut places = PlacesByLock::default();
        for (revision, row) in &rows {
            ended.push(*revision, &row.lock, &encode(row)).unwrap();
            note(&mut places, &row.lock, (row.token, *revision));
        }
        ended.flush(places).unwrap();
        ended.trim(&write, bounds, self.last).unwrap();
        self.size = ended.size;
        drop(ended);
        write.commit().unwrap();
        self.list.extend(rows);
        let age = u64::try_from(bounds.age.as_millis()).unwrap();
        let oldest = self.last.saturating_sub(age);
        while let Some((_, row)) = self.list.first()
            && (self.bytes() > bounds.bytes || row.end.as_ref().unwrap().at_ms < oldest)
        {
            self.list.remove(0);
        }
    }

    fn bytes(&self) -> u64 {
        let cost = |(_, row): &(u64, Row)| cost(&row.lock, &encode(row));
        self.list.iter().map(cost).sum()
    }

    fn push_back(&mut self) {
        let free = self.last - self.list.len() as u64;
        let count = self.below(200).min(free);
        let rows: Vec<Row> = (0..count).map(|_| self.row()).collect();
        let write = self.db.begin_write().unwrap();
        let mut ended = Ended::open(&write, self.size).unwrap();
        ended.push_back(self.last, &rows).unwrap();
        self.size = ended.size;
        drop(ended);
        write.commit().unwrap();
        let mut at = self.last;
        for row in rows {
            while self.list.iter().any(|(taken, _)| *taken == at) {
                at -= 1;
            }
            self.list.push((at, row));
        }
        self.list.sort_by_key(|(at, _)| *at);
    }

    fn told(&self, mut query: Query, limit: usize) -> Vec<Row> {
        let reader = Reader::new(Arc::clone(&self.db));
        let mut rows = Vec::new();
        loop {
            let page = reader.page(&query, limit).unwrap();
            rows.extend(page.rows.into_iter().map(|(row, _)| row));
            query.after = page.next;
            if query.after.is_none() {
                return rows;
            }
        }
    }

    fn compare(&mut self) {
        assert_eq!(self.size.rows, self.list.len() as u64);
        assert_eq!(self.size.bytes, self.bytes());
        let limit = 1 + self.below(40) as usize;
        let all: Vec<Row> = self.list.iter().rev().map(|(_, row)| row.clone()).collect();
        assert!(self.told(Query::default(), limit) == all);
        for lock in LOCKS {
            let mut of: Vec<_> = self
                .list
                .iter()
                .filter(|(_, row)| row.lock == lock)
                .collect();
            of.sort_by_key(|(at, row)| std::cmp::Reverse((row.token, *at)));
            let of: Vec<Row> = of.into_iter().map(|(_, row)| row.clone()).collect();
            let lock = Some(lock.to_owned());
            let query = Query {
                lock,
                ..Query::default()
            };
            assert!(self.told(query.clone(), limit) == of);
            let token = of.get(of.len() / 2).map_or(1, |row| row.token);
            let with: Vec<Row> = of.into_iter().filter(|row| row.token == token).collect();
            let query = Query {
                token: Some(token),
                ..query
            };
            assert!(self.told(query, limit) == with);
        }
    }

    /// No run or page overlaps another one, none is empty, and what is gone has left none behind.
    fn shape(&self) -> (usize, usize) {
        let read = self.db.begin_read().unwrap();
        let pages = read.open_table(ENDED).unwrap();
        let runs = read.open_table(BY_LOCK).unwrap();
        let (mut count, mut places) = (0, 0);
        let mut before: Option<(String, (u64, u64))> = None;
        for entry in runs.iter().unwrap() {
            let (key, rest) = entry.unwrap();
            let (lock, token, revision) = key.value();
            let run = crate::codec::run((token, revision), rest.value());
            assert!(run.is_sorted(), "{lock} {run:?}");
            assert!(before.is_none_or(|before| before < (lock.to_owned(), run[0])));
            before = Some((lock.to_owned(), run[run.len() - 1]));
            (count, places) = (count + 1, places + run.len());
        }
        assert_eq!(places, self.list.len());
        (pages.iter().unwrap().count(), count)
    }
}

/// The control is the number of rows: one that was lost or told twice would show.
#[test]
fn pages_and_runs_tell_the_same_as_a_list() {
    for seed in 0..6 {
        let mut twin = Twin::new(seed);
        let bounds = match seed % 3 {
            0 => Bounds::DEFAULT,
            1 => Bounds {
                bytes: 40_000,
                ..Bounds::DEFAULT
            },
            _ => Bounds {
                age: Duration::from_millis(700),
                ..Bounds::DEFAULT
            },
        };
        for round in 0..40 {
            twin.commit(bounds);
            if round % 7 == 3 {
                twin.push_back();
            }
            if round % 5 == 0 {
                println!("seed {seed}, round {round}: {} rows", twin.list.len());
                twin.compare();
                twin.shape();
            }
        }
        twin.compare();
        let (pages, runs) = twin.shape();
        println!(
            "seed {seed}: {} rows, {pages} pages, {runs} runs",
            twin.list.len()
        );
        assert!(pages < twin.list.len() && runs < twin.list.len());
    }
}

/// The control is the whole page.
#[test]
fn bytes_that_are_no_page_have_no_rows() {
    let row = Twin::new(1).row();
    let encoded = encode(&row);
    for cut in 0..=encoded.len() {
        let mut page = Vec::new();
        crate::codec::push_number(&mut page, 0);
        crate::codec::push_number(&mut page, encoded.len() as u64);
        page.extend_from_slice(&encoded[..cut]);
        let rows = usize::from(cut == encoded.len());
        assert_eq!(crate::codec::Rows::of(1, &page).count(), rows, "{cut}");
    }
    let endless = [0xff; 40];
    assert_eq!(crate::codec::Rows::of(1, &endless).count(), 0);
    assert_eq!(crate::codec::run((1, 1), &endless).len(), 1);
}
