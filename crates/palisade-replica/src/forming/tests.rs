//! The decision as a table, and whole formations with every node crashing at every step.

use super::*;

const ADDRESSES: [&str; 3] = ["a:1", "b:1", "c:1"];

fn id(byte: u8) -> Id {
    Id::from_bytes([byte; 16])
}

fn list() -> List {
    let addresses = ADDRESSES.map(str::to_owned);
    List::new(&addresses, "a:1").unwrap()
}

fn with(node: u64, address: &str, standing: Standing) -> Introduction {
    Introduction {
        node: NodeId(node),
        address: address.to_owned(),
        url: format!("http://{address}"),
        reads: 1,
        timers: Profile::default(),
        starts: 0,
        last: None,
        history: Vec::new(),
        standing,
    }
}

fn blank(node: u64, address: &str) -> Introduction {
    let standing = Standing::Blank {
        draft: (id(node as u8), id((node as u8).wrapping_add(0x10))),
        list: Some(list().addresses),
        proposal: None,
    };
    with(node, address, standing)
}

fn single(node: u64, address: &str) -> Introduction {
    let standing = Standing::Single {
        authority: id((node as u8).wrapping_add(0xa0)),
        list: Some(list().addresses),
    };
    with(node, address, standing)
}

fn member(node: u64, address: &str, authority: u8, members: &[(u64, &str)]) -> Introduction {
    let standing = Standing::Member {
        authority: id(authority),
        incarnation: id(0x11),
        members: members
            .iter()
            .map(|(node, address)| (NodeId(*node), (*address).to_owned()))
            .collect(),
    };
    with(node, address, standing)
}

fn views(others: &[Introduction]) -> Views {
    let view = |one: &Introduction| (one.address.clone(), Ok(one.clone()));
    others.iter().map(view).collect()
}

/// In one line, with the fields that matter.
fn verdict(own: &Introduction, others: &[Introduction]) -> String {
    match decide(own, &list(), &views(others)) {
        Ok(Decision::Wait(why)) => format!("wait: {why}"),
        Ok(Decision::Form(founding)) => format!("form {}", founding.authority),
        Ok(Decision::Seed) => "seed".into(),
        Ok(Decision::Join(cluster)) => {
            format!(
                "join {}, a member: {}",
                cluster.authority, cluster.is_member
            )
        }
        Err(why) => format!("refused: {why}"),
    }
}

#[test]
fn what_a_node_does_next() {
    let (a, b, c) = (blank(1, "a:1"), blank(2, "b:1"), blank(3, "c:1"));
    let all = [(1, "a:1"), (2, "b:1"), (3, "c:1")];
    let of_list = |mut one: Introduction, list: Option<&[&str]>| {
        if let Standing::Blank { list: theirs, .. } = &mut one.standing {
            *theirs = list.map(|list| list.iter().map(|at| (*at).to_owned()).collect());
        }
        one
    };
    let formed = |node, address| member(node, address, 0xcc, &all);
    let seeded = member(1, "a:1", 0xcc, &[(1, "a:1")]);
    let cases: Vec<(Introduction, Vec<Introduction>, &[&str])> = vec![
        (a.clone(), vec![], &["wait: waiting for b:1, c:1"]),
        (a.clone(), vec![b.clone()], &["wait: waiting for c:1"]),
        (a.clone(), vec![b.clone(), c.clone()], &["wait:", "agree"]),
        (
            a.clone(),
            vec![b.clone(), single(3, "c:1")],
            &["wait:", "c:1", "locks"],
        ),
        (
            a.clone(),
            vec![single(3, "c:1")],
            &["wait: waiting for b:1"],
        ),
        // One server among blank nodes seeds, once it has heard from all.
        (
            single(1, "a:1"),
            vec![b.clone()],
            &["wait: waiting for c:1"],
        ),
        (single(1, "a:1"), vec![b.clone(), c.clone()], &["seed"]),
        (
            single(1, "a:1"),
            vec![single(2, "b:1")],
            &[
                "refused:",
                "a:1",
                "b:1",
                "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1",
                "a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2",
                "another --data",
            ],
        ),
        (
            a.clone(),
            vec![single(2, "b:1"), single(3, "c:1")],
            &["refused:", "b:1", "c:1"],
        ),
        // A cluster is there.
        (
            a.clone(),
            vec![formed(2, "b:1")],
            &["join", "a member: true"],
        ),
        (
            b.clone(),
            vec![seeded.clone()],
            &["join", "a member: false"],
        ),
        (
            b.clone(),
            vec![seeded.clone(), c.clone()],
            &["join", "a member: false"],
        ),
        (
            blank(9, "a:1"),
            vec![formed(2, "b:1")],
            &[
                "refused:",
                "a:1",
                "cluster replace 0000000000000001 0000000000000009",
            ],
        ),
        (
            single(1, "a:1"),
            vec![formed(2, "b:1")],
            &["refused:", "locks of its own", "start without --cluster"],
        ),
        // It was restored, and nodes of the old cluster run.
        (
            single(1, "a:1"),
            vec![member(2, "b:1", 0xa1, &all)],
            &["refused:", "a:1", "http://b:1", "of the older one"],
        ),
        (
            b.clone(),
            vec![single(1, "a:1"), member(3, "c:1", 0xa1, &all)],
            &["wait:", "a:1", "http://c:1", "of the older one"],
        ),
        (
            a.clone(),
            vec![formed(2, "b:1"), member(3, "c:1", 0xdd, &all)],
            &[
                "refused:",
                "two clusters",
                "cccccccccccccccccccccccccccccccc",
                "dddddddddddddddddddddddddddddddd",
            ],
        ),
        // Contradictions between the others.
        (
            a.clone(),
            vec![b.clone(), blank(2, "c:1")],
            &["refused:", "b:1", "c:1", "same id"],
        ),
        (
            a.clone(),
            vec![blank(1, "b:1")],
            &["refused:", "a:1", "b:1", "same id"],
        ),
        (
            a.clone(),
            vec![of_list(b.clone(), Some(&["a:1", "b:1", "d:1"]))],
            &["refused:", "a:1,b:1,c:1 at a:1", "a:1,b:1,d:1 at b:1"],
        ),
        (
            a.clone(),
            vec![of_list(b.clone(), None)],
            &["refused:", "b:1", "--join"],
        ),
    ];
    for (own, others, expect) in cases {
        let found = verdict(&own, &others);
        for part in expect {
            assert!(found.contains(part), "{found}: {part}");
        }
    }
}

#[test]
fn all_blank_nodes_form_what_the_smallest_one_drew_once_all_propose_it() {
    let mut all = [blank(2, "a:1"), blank(1, "b:1"), blank(3, "c:1")];
    let others = |all: &[Introduction; 3], own: usize| {
        let mut others = all.to_vec();
        others.remove(own);
        views(&others)
    };
    for own in 0..3 {
        let others = others(&all, own);
        assert!(matches!(
            decide(&all[own], &list(), &others),
            Ok(Decision::Wait(_))
        ));
        propose(&mut all[own], &list(), &others);
    }
    let decide_of = |own: usize| decide(&all[own], &list(), &others(&all, own)).unwrap();
    let Decision::Form(founding) = decide_of(0) else {
        panic!("{:?}", decide_of(0));
    };
    assert_eq!(
        (founding.authority, founding.incarnation),
        (id(1), id(0x11))
    );
    assert_eq!(founding.members.nodes[&NodeId(1)], "b:1");
    assert_eq!(founding.members.voters.concat_len(), 3);
    assert_eq!(decide_of(1), decide_of(0));
    assert_eq!(decide_of(2), decide_of(0));
}

/// The first one may have formed the cluster before the last one looks, which then does the same: it announced it.
#[test]
fn a_founder_that_comes_last_forms_what_it_announced() {
    let nodes = [(1, "a:1"), (2, "b:1"), (3, "c:1")];
    let mut last = blank(3, "c:1");
    let blanks = views(&[blank(1, "a:1"), blank(2, "b:1")]);
    propose(&mut last, &list(), &blanks);
    // It does not hear one of them for a round.
    propose(&mut last, &list(), &views(&[blank(1, "a:1")]));
    let ours = member(1, "a:1", 1, &nodes);
    let formed = verdict(&last, std::slice::from_ref(&ours));
    assert_eq!(formed, format!("form {}", id(1)));
    // Not what it announced: another life, other members, or nothing was announced.
    let joins = format!("join {}, a member: true", id(1));
    let mut again = ours.clone();
    if let Standing::Member { incarnation, .. } = &mut again.standing {
        *incarnation = id(0x12);
    }
    let grown = member(1, "a:1", 1, &[&nodes[..], &[(4, "d:1")]].concat());
    for (own, other) in [(&last, again), (&last, grown), (&blank(3, "c:1"), ours)] {
        assert_eq!(verdict(own, &[other]), joins);
    }
}

trait ConcatLen {
    fn concat_len(&self) -> usize;
}

impl ConcatLen for Vec<BTreeSet<NodeId>> {
    fn concat_len(&self) -> usize {
        self.iter().map(BTreeSet::len).sum()
    }
}

#[test]
fn a_list_has_this_node_in_it_and_no_address_twice() {
    let of = |addresses: &[&str], own| {
        let addresses: Vec<String> = addresses.iter().map(|at| (*at).to_owned()).collect();
        List::new(&addresses, own)
    };
    assert_eq!(
        of(&["b:1", "a:1", "c:1"], "a:1"),
        of(&["a:1", "b:1", "c:1"], "c:1")
    );
    let refused = of(&["b:1", "c:1"], "a:1").unwrap_err();
    assert!(
        refused.contains("b:1,c:1") && refused.contains("a:1"),
        "{refused}"
    );
    assert!(of(&["a:1", "a:1"], "a:1").unwrap_err().contains("twice"));
    let many: Vec<String> = (0..65).map(|n| format!("a:{n}")).collect();
    assert!(List::new(&many, "a:1").unwrap_err().contains("64"));
    assert_eq!(list().warning(), None);
    let four = of(&["a:1", "b:1", "c:1", "d:1"], "a:1").unwrap();
    let warning = four.warning().unwrap();
    assert!(
        warning.contains("majority of 4 is 3") && warning.contains("use 3 or 5"),
        "{warning}"
    );
}

/// A small generator: the schedule of one seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }

    fn id(&mut self) -> Id {
        let mut bytes = [0; 16];
        bytes.fill_with(|| self.roll(256) as u8);
        Id::from_bytes(bytes)
    }
}

/// A node, perhaps without a process. Only its id and its directory outlive the process.
struct Node {
    own: Introduction,
    up: bool,
    views: Views,
}

struct World {
    nodes: Vec<Node>,
    dice: Dice,
}

impl World {
    fn new(seed: u64, with_single: bool) -> World {
        let mut dice = Dice(seed);
        dice.roll(1);
        let nodes = ADDRESSES.into_iter().enumerate().map(|(at, address)| {
            let own = if at == 0 && with_single {
                single(dice.roll(1 << 30) + 1, address)
            } else {
                blank(dice.roll(1 << 30) + 1, address)
            };
            Node {
                own,
                up: true,
                views: Views::new(),
            }
        });
        let nodes = nodes.collect();
        let mut world = World { nodes, dice };
        (0..3).for_each(|at| world.restart(at));
        world
    }

    /// Restarts a node, which forgets everything that its process had in memory.
    fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        (node.up, node.views) = (true, Views::new());
        if let Standing::Blank {
            draft, proposal, ..
        } = &mut node.own.standing
        {
            (*draft, *proposal) = ((self.dice.id(), self.dice.id()), None);
        }
    }

    fn meet(&mut self, at: usize, other: usize) {
        let found = if self.nodes[other].up {
            Ok(self.nodes[other].own.clone())
        } else {
            Err("gone".to_owned())
        };
        let address = ADDRESSES[other].to_owned();
        self.nodes[at].views.insert(address, found);
    }

    /// One node decides on the introductions that it has heard, however old they are, and acts. It may crash
    /// before and after.
    fn act(&mut self, at: usize) -> Result<(), String> {
        let own = self.nodes[at].own.clone();
        if !self.nodes[at].up || matches!(own.standing, Standing::Member { .. }) {
            return Ok(());
        }
        let views = &self.nodes[at].views;
        let decided = decide(&own, &list(), views)?;
        let mut next = own.clone();
        propose(&mut next, &list(), views);
        let become_member = |authority, incarnation, members| Standing::Member {
            authority,
            incarnation,
            members,
        };
        let node = &mut self.nodes[at].own;
        match (decided, &mut node.standing) {
            (Decision::Form(founding), standing) => {
                let Founding {
                    authority,
                    incarnation,
                    members,
                } = founding;
                *standing = become_member(authority, incarnation, members.nodes);
            }
            (Decision::Join(cluster), standing) => {
                *standing = become_member(cluster.authority, cluster.incarnation, BTreeMap::new());
            }
            (Decision::Seed, Standing::Single { authority, .. }) => {
                let alone = [(node.node, node.address.clone())].into();
                node.standing = become_member(*authority, self.dice.id(), alone);
            }
            (_, standing) => *standing = next.standing,
        }
        Ok(())
    }

    fn clusters(&self) -> BTreeSet<(Id, Id)> {
        let of = |node: &Node| match node.own.standing {
            Standing::Member {
                authority,
                incarnation,
                ..
            } => Some((authority, incarnation)),
            _ => None,
        };
        self.nodes.iter().filter_map(of).collect()
    }

    /// A random step, one in which a node crashes, comes back, or loses its disk while that is blank.
    fn step(&mut self, disks_are_lost: bool) -> Result<(), String> {
        let (at, other) = (self.dice.roll(3) as usize, self.dice.roll(3) as usize);
        match self.dice.roll(12) {
            0 => self.nodes[at].up = false,
            1 | 2 if !self.nodes[at].up => self.restart(at),
            3 if disks_are_lost => {
                if let Standing::Blank { .. } = self.nodes[at].own.standing {
                    self.nodes[at].own.node = NodeId(self.dice.roll(1 << 30) + 1);
                    self.restart(at);
                }
            }
            4..8 if at != other && self.nodes[at].up => self.meet(at, other),
            _ => return self.act(at),
        }
        Ok(())
    }
}

/// Every node crashes and comes back at any step; all of them end in one cluster, and never in two.
#[test]
fn nodes_that_crash_at_any_step_end_in_one_cluster_and_never_in_two() {
    let mut outcomes = [0; 2];
    for seed in 0..4_000 {
        let (with_single, disks_are_lost) = (seed % 2 == 0, seed % 4 == 1);
        let mut world = World::new(seed, with_single);
        for _ in 0..world.dice.roll(120) {
            let stepped = world.step(disks_are_lost);
            assert!(
                stepped.is_ok() || disks_are_lost,
                "seed {seed}: {stepped:?}"
            );
            assert!(
                world.clusters().len() <= 1,
                "seed {seed}: {:?}",
                world.clusters()
            );
        }
        outcomes[world.clusters().len()] += 1;
        if disks_are_lost {
            continue;
        }
        (0..3).for_each(|at| world.restart(at));
        for _ in 0..6 {
            for at in 0..3 {
                (0..3)
                    .filter(|other| *other != at)
                    .for_each(|other| world.meet(at, other));
                world.act(at).unwrap();
            }
        }
        let all_members = |node: &Node| matches!(node.own.standing, Standing::Member { .. });
        assert!(world.nodes.iter().all(all_members), "seed {seed}");
        assert_eq!(world.clusters().len(), 1, "seed {seed}");
    }
    assert!(outcomes.iter().all(|count| *count > 200), "{outcomes:?}");
}
