//! The picture must show every event, keep labels apart and next to their marks, never turn text into markup, and still
//! work when an act is empty or crowded.

use palisade_draw::{Canvas, Font, Rect, Shape, StyledShape, Text, escape};

use super::chart::chart;
use super::model::*;
use super::picture::drawing;
use super::spans::{BarStyle, PictureRow};
use super::{html, svg};

/// Three acts as the demo recorded them.
fn acts() -> Vec<Act> {
    let files = [
        include_str!("fixture/unfenced.json"),
        include_str!("fixture/textbook.json"),
        include_str!("fixture/claim.json"),
    ];
    files
        .map(|text| serde_json::from_str(text).expect("the fixture is an act"))
        .to_vec()
}

fn assert_legible(act: &Act) {
    let problems = drawing(std::slice::from_ref(act)).problems();
    assert!(problems.is_empty(), "{:?}: {problems:#?}", act.name);
}

/// The horizontal middle of a shape.
fn middle(shape: &Shape) -> f64 {
    match shape {
        Shape::Circle((x, _), _) => *x,
        Shape::Rect(rect, _) => rect.middle().0,
        Shape::Line(a, b) => (a.0 + b.0) / 2.0,
        // The danger sign: its second point is its top.
        Shape::Path(data) => data[data.find('L').unwrap_or(0) + 1..]
            .split(' ')
            .next()
            .and_then(|x| x.parse().ok())
            .unwrap_or(0.0),
    }
}

/// The event of the dangerous write, if the act has one.
fn dangerous(act: &Act) -> Option<usize> {
    act.steps()
        .into_iter()
        .find(|step| step.is_dangerous)
        .map(|step| step.event)
}

fn of_event(canvas: &Canvas, event: usize) -> (Vec<&StyledShape>, Vec<&Text>) {
    let marks = canvas.marks.iter().filter(|mark| mark.note == Some(event));
    let texts = canvas.texts.iter().filter(|text| text.note == Some(event));
    (marks.collect(), texts.collect())
}

/// An act with sixty events, most of them within a few milliseconds of three clients.
fn crowded() -> Act {
    let mut act = Act::new(ActName::Claim);
    for step in 0..20_u32 {
        let at = f64::from(step) * 0.7 + f64::from(step % 5) * 90.0;
        let client = ["A", "B", "C"][step as usize % 3].to_owned();
        let message = Message {
            id: format!("m-{step}"),
            client: client.clone(),
            sent_ms: Some(at),
            arrived_ms: (step % 7 != 3).then_some(at + if step % 6 == 1 { 300.0 } else { 0.3 }),
            decided_ms: None,
            answered_ms: None,
        };
        let operation = OperationKind::Write;
        let verdict = if step % 2 == 0 {
            Ruling::Admitted
        } else {
            Ruling::Rejected(9)
        };
        act.events.push(TimelineEvent::Operation(ResourceMessage {
            message: message.clone(),
            operation,
            token: Some(u64::from(step)),
            value: Some(format!("order {step}")),
            verdict: Some(verdict),
        }));
        act.events.push(TimelineEvent::Request(LockMessage {
            message,
            request: LockMessageKind::Acquire,
            answer: None,
        }));
        let items = vec![format!("order {step}")];
        act.events.push(TimelineEvent::Content(Content {
            at_ms: at + 0.4,
            items,
            highest: Some(u64::from(step)),
        }));
    }
    act
}

#[test]
fn every_event_of_the_fixture_is_drawn_and_listed() {
    for act in acts() {
        let (picture, page) = (
            svg(std::slice::from_ref(&act)),
            html(std::slice::from_ref(&act)),
        );
        for (index, event) in act.events.iter().enumerate() {
            let mark = format!("data-event=\"{index}\"");
            assert!(
                picture.contains(&mark) && page.contains(&mark),
                "{:?} {index} {event:?}",
                act.name
            );
            let words = escape(&super::words::describe(event));
            assert!(
                picture.contains(&words) && page.contains(&format!("<td>{words}</td>")),
                "{words}"
            );
        }
    }
}

#[test]
fn no_two_labels_overlap_and_each_stays_in_its_band() {
    acts().iter().for_each(assert_legible);
    assert_eq!(drawing(&acts()).problems(), Vec::<String>::new());
}

#[test]
fn a_planted_overlap_and_a_label_that_is_too_long_are_found() {
    let act = acts().remove(1);
    let mut lanes = chart(&act).lanes;
    let planted = Text {
        at: (lanes.texts[0].at.0 + 3.0, lanes.texts[0].at.1),
        band: None,
        ..lanes.texts[0].clone()
    };
    lanes.texts.push(planted);
    assert_eq!(lanes.problems().len(), 1);
    lanes.texts.pop();
    let banded = lanes
        .texts
        .iter_mut()
        .find(|text| text.band.is_some())
        .expect("a bar with words");
    banded.band = banded.band.map(|band| Rect { w: 20.0, ..band });
    assert!(lanes.problems()[0].contains("leaves its band"));
}

#[test]
fn the_label_of_an_operation_is_below_its_own_sign() {
    for act in acts() {
        let lanes = chart(&act).lanes;
        for step in act.steps() {
            let (marks, texts) = of_event(&lanes, step.event);
            let signs: Vec<f64> = marks
                .iter()
                .filter(|mark| mark.layer == palisade_draw::Layer::Sign)
                .map(|mark| middle(&mark.shape))
                .collect();
            let label: Vec<&&Text> = texts.iter().filter(|text| text.band.is_none()).collect();
            assert_eq!(label.len(), step.lines.len(), "{:?}", step.operation);
            for text in label {
                assert!(
                    (text.at.0 - signs[0]).abs() < 0.2,
                    "{} is not at {signs:?}",
                    text.text
                );
                assert!(
                    text.text != step.lines[0]
                        || text.text.starts_with(&step.operation.message.client)
                );
            }
        }
    }
}

#[test]
fn labels_of_one_act_stand_in_the_order_of_time() {
    for act in acts() {
        let lanes = chart(&act).lanes;
        let steps = act.steps();
        let places = steps.iter().map(|step| {
            let found = lanes
                .texts
                .iter()
                .find(|text| text.note == Some(step.event) && text.band.is_none());
            found.expect("a label").at
        });
        let places: Vec<(f64, f64)> = places.collect();
        assert!(
            places
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1),
            "{places:?}"
        );
    }
}

#[test]
fn the_dangerous_write_is_drawn_as_one_and_no_other_operation_is() {
    for act in acts() {
        let lanes = chart(&act).lanes;
        let wanted = dangerous(&act);
        assert_eq!(
            wanted.is_some(),
            act.name != ActName::Claim,
            "the fence rejects it"
        );
        let red: Vec<Option<usize>> = lanes
            .marks
            .iter()
            .filter(|mark| mark.class.contains("danger"))
            .map(|mark| mark.note)
            .collect();
        assert_eq!(red, Vec::from_iter(wanted.map(Some)), "{:?}", act.name);
        let Some(event) = wanted else { continue };
        let (_, texts) = of_event(&lanes, event);
        assert!(
            texts
                .iter()
                .filter(|text| text.band.is_none())
                .all(|text| text.class == "bad")
        );
        let TimelineEvent::Operation(write) = &act.events[event] else {
            panic!("not an operation")
        };
        assert_eq!((write.message.client.as_str(), write.token), ("A", Some(1)));
    }
}

#[test]
fn a_write_is_dangerous_only_after_the_next_grant() {
    let mut act = acts().remove(0);
    let event = dangerous(&act).expect("the late write of A");
    for event in &mut act.events {
        if let TimelineEvent::Granted(LeaseChange {
            at_ms, token: 2, ..
        }) = event
        {
            *at_ms = 9_999.0;
        }
    }
    let TimelineEvent::Operation(write) = &act.events[event] else {
        panic!("not an operation")
    };
    assert!(!act.is_dangerous(write));
}

#[test]
fn the_results_come_first() {
    let canvas = drawing(&acts());
    let place = |wanted: &str| {
        let found = canvas.texts.iter().find(|text| text.text == wanted);
        found.unwrap_or_else(|| panic!("no {wanted}")).at.1
    };
    let first = canvas
        .parts
        .iter()
        .map(|part| part.1)
        .fold(f64::MAX, f64::min);
    for words in ["update of B lost", "update of A lost", "nothing lost"] {
        assert!(place(words) < first, "{words}");
    }
    let largest = canvas
        .texts
        .iter()
        .filter(|text| text.font == Font::Heading)
        .count();
    assert_eq!(largest, 6, "three results and three titles");
}

#[test]
fn the_wait_and_the_content_are_bars_with_words() {
    for act in acts() {
        let spans = act.spans();
        let wait = spans
            .iter()
            .find(|span| span.style == BarStyle::Wait)
            .expect("B waits");
        assert!(
            wait.to - wait.from > 1_000.0 && wait.words.starts_with("B waits for the lock: 1."),
            "{wait:?}"
        );
        let content: Vec<&str> = spans
            .iter()
            .filter(|span| span.row == PictureRow::Content)
            .map(|span| span.words.as_str())
            .collect();
        let wanted: &[&str] = match act.name {
            ActName::Unfenced => &["nothing", "B", "A (B is gone)"],
            ActName::Textbook => &["nothing", "A", "B (A is gone)"],
            ActName::Claim => &["nothing", "B"],
        };
        assert_eq!(content, wanted);
        let written = chart(&act).lanes.texts;
        for words in content.iter().chain([&wait.words.as_str()]) {
            assert!(
                written
                    .iter()
                    .any(|text| text.text == *words && text.band.is_some()),
                "{words}"
            );
        }
    }
}

#[test]
fn the_axis_is_to_scale_and_labelled() {
    for act in acts() {
        let chart = chart(&act);
        for words in ["steps in order", "time, to scale"] {
            assert!(chart.names.texts.iter().any(|text| text.text == words));
        }
        let ticks = ["0", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s"].map(|words| {
            let found = chart.lanes.texts.iter().find(|text| text.text == words);
            found.unwrap_or_else(|| panic!("no {words}")).at.0
        });
        let distances: Vec<f64> = ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            distances
                .iter()
                .all(|one| (one - distances[0]).abs() < 1e-6),
            "{distances:?}"
        );
    }
}

#[test]
fn an_empty_act_lays_out() {
    let act = Act::new(ActName::Unfenced);
    assert_legible(&act);
    assert!(chart(&act).lanes.height > 100.0);
    assert!(html(&[act]).contains("The 0 recorded events"));
    assert!(svg(&[]).ends_with("</svg>\n"));
}

#[test]
fn an_act_with_sixty_events_lays_out() {
    let act = crowded();
    assert_eq!(act.events.len(), 60);
    assert_legible(&act);
    let page = html(&[act]);
    assert!(page.contains("data-event=\"59\"") && page.contains("client C"));
    assert!(!page.contains("NaN") && !page.contains("inf\""));
}

#[test]
fn text_from_events_never_becomes_markup() {
    let mut act = acts().remove(2);
    let evil = "</text><script>alert('x')</script>&\"\u{1}";
    act.title = evil.into();
    act.explanation = evil.into();
    act.verdict.content = vec![evil.into()];
    act.verdict.incomplete = Some(evil.into());
    act.events.push(TimelineEvent::Content(Content {
        at_ms: 9.0,
        items: vec![evil.into()],
        highest: Some(1),
    }));
    act.events.push(TimelineEvent::Paused(Period {
        from_ms: 9.0,
        to_ms: Some(10.0),
        client: evil.into(),
        token: None,
    }));
    for text in [
        svg(std::slice::from_ref(&act)),
        html(std::slice::from_ref(&act)),
    ] {
        assert!(!text.contains("<script") && !text.contains('\u{1}'));
        assert!(text.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
    }
}

#[test]
fn the_files_are_self_contained_and_small() {
    let (picture, page) = (svg(&acts()), html(&acts()));
    for text in [&picture, &page] {
        assert!(text.len() < 200_000, "{}", text.len());
        for foreign in ["<script", "<link", "@import", "url(", "src=", "href="] {
            assert!(!text.contains(foreign), "{foreign}");
        }
    }
    assert_eq!(page.matches("prefers-color-scheme:dark").count(), 2);
    assert_eq!(page.matches("<section").count(), 3);
}

#[test]
fn the_verdict_is_computed_from_the_records() {
    let headlines: Vec<String> = acts().iter().map(|act| act.verdict.headline()).collect();
    let wanted = [
        "acknowledged update of B lost",
        "acknowledged update of A lost",
        "nothing lost: A’s late write was rejected",
    ];
    assert_eq!(headlines, wanted);
    let incomplete = ActEnd {
        incomplete: Some("B was never granted".into()),
        ..acts()[2].verdict.clone()
    };
    assert_eq!(
        (incomplete.outcome(), acts()[2].verdict.outcome()),
        (ActOutcome::Incomplete, ActOutcome::Kept)
    );
}

#[test]
fn a_wrong_belief_is_drawn_only_where_there_is_one() {
    let gaps = |act: &Act| {
        let spans = act.spans();
        spans
            .iter()
            .filter(|span| span.style == BarStyle::Gap)
            .count()
    };
    let mut act = acts().remove(0);
    assert_eq!(gaps(&act), 1, "A's belief outlives its lease, B's does not");
    for event in &mut act.events {
        if let TimelineEvent::Believed(Period { to_ms, .. }) = event {
            *to_ms = to_ms.map(|end| end - 2000.0);
        }
    }
    assert_eq!(gaps(&act), 0);
}

#[test]
fn reversed_spans_and_times_that_are_not_numbers_lay_out() {
    let mut act = acts().remove(1);
    for (index, event) in act.events.iter_mut().enumerate() {
        let odd = [f64::NAN, f64::INFINITY, -80.0, 1e12][index % 4];
        match event {
            TimelineEvent::Believed(period) | TimelineEvent::Paused(period) => {
                period.to_ms = Some(odd)
            }
            TimelineEvent::Expired(lease) => lease.at_ms = odd,
            TimelineEvent::Content(content) => content.at_ms = odd,
            TimelineEvent::Request(request) => request.message.arrived_ms = Some(odd),
            TimelineEvent::Operation(operation) => operation.message.sent_ms = Some(odd),
            _ => {}
        }
    }
    assert_legible(&act);
    let coordinates = svg(&[act]);
    assert!(
        !coordinates.contains("\"NaN")
            && !coordinates.contains("\"inf")
            && !coordinates.contains("LNaN")
    );
}

#[test]
fn a_fence_whose_token_falls_is_reported() {
    let words = |act: &Act| {
        svg(std::slice::from_ref(act))
            .matches("the fence FELL to token 1<")
            .count()
    };
    let mut act = acts().remove(2);
    assert_eq!(words(&act), 0);
    act.events.push(TimelineEvent::Content(Content {
        at_ms: 3200.0,
        items: Vec::new(),
        highest: Some(1),
    }));
    assert_eq!(words(&act), 1);
}

#[test]
fn records_of_sender_and_receiver_merge_into_one_message() {
    let sender = r#"{"event":"operation","id":"A-3","client":"A","operation":"write","token":1,"sent_ms":15.2,"answered_ms":30.0}"#;
    let receiver = r#"{"event":"operation","id":"A-3","operation":"write","arrived_ms":20.5,"decided_ms":21.0,"verdict":{"rejected":2}}"#;
    let other = r#"{"event":"request","id":"A-3","client":"A","request":"release","sent_ms":15.2,"answer":"done"}"#;
    let records =
        [receiver, sender, other].map(|line| serde_json::from_str(line).expect("a record"));
    let merged = merge(records);
    assert_eq!(merged.len(), 2);
    let TimelineEvent::Operation(operation) = &merged[0] else {
        panic!("{merged:?}")
    };
    assert_eq!(
        (operation.message.client.as_str(), operation.token),
        ("A", Some(1))
    );
    assert_eq!(
        operation.message.sent_ms.zip(operation.message.decided_ms),
        Some((15.2, 21.0))
    );
    assert_eq!(operation.verdict, Some(Ruling::Rejected(2)));
}

#[test]
fn the_fixture_has_the_texts_of_the_model_and_survives_a_round_trip() {
    for act in acts() {
        let fresh = Act::new(act.name);
        assert_eq!(
            (&act.title, &act.explanation),
            (&fresh.title, &fresh.explanation)
        );
        let text = serde_json::to_string(&act).expect("an act is JSON");
        assert_eq!(
            serde_json::from_str::<Act>(&text).expect("what was written"),
            act
        );
        assert_eq!(svg(std::slice::from_ref(&act)), svg(&[act]));
    }
}

/// `PALISADE_BLESS=1 cargo test -p palisade --bin palisade readme` writes it again.
#[test]
fn the_picture_in_the_readme_shows_the_fixture() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/demo.svg");
    if std::env::var_os("PALISADE_BLESS").is_some() {
        std::fs::write(path, svg(&acts())).expect("docs/ can be written");
    }
    let committed = std::fs::read_to_string(path).expect("docs/demo.svg exists");
    assert!(committed == svg(&acts()), "docs/demo.svg is out of date");
}
