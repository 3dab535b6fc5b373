//! The picture must show every event, keep its labels apart, let no text become markup, and hold up when an act is empty
//! or crowded.

use super::geometry::Rect;
use super::layout::{GUTTER, PLOT, scene};
use super::model::*;
use super::scene::Scene;
use super::{axis::Axis, html, svg};

/// The fixture: three acts as the demo records them.
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

/// Every pair of overlapping rectangles, by index.
fn overlaps(rects: &[Rect]) -> Vec<(usize, usize)> {
    let pairs = (0..rects.len()).flat_map(|a| (a + 1..rects.len()).map(move |b| (a, b)));
    pairs
        .filter(|(a, b)| rects[*a].overlaps(&rects[*b]))
        .collect()
}

/// The areas of all labels of a scene, plot and gutter beside each other.
fn label_areas(scene: &Scene) -> Vec<Rect> {
    let plot = scene.labels.iter().map(|label| label.rect);
    let gutter = scene.gutter.iter().map(|label| Rect {
        x: label.rect.x - GUTTER,
        ..label.rect
    });
    plot.chain(gutter).collect()
}

/// Asserts that labels overlap nowhere and lie within the picture.
fn assert_legible(act: &Act) {
    let scene = scene(act);
    let areas = label_areas(&scene);
    let labels: Vec<_> = scene.labels.iter().chain(&scene.gutter).collect();
    let found: Vec<_> = overlaps(&areas)
        .into_iter()
        .map(|(a, b)| (labels[a], labels[b]))
        .collect();
    assert!(found.is_empty(), "{:?}: {found:#?}", act.name);
    for (area, label) in areas.iter().zip(labels) {
        let inside = area.x >= -GUTTER
            && area.right() <= PLOT
            && area.y >= 0.0
            && area.bottom() <= scene.height;
        assert!(inside, "{:?}: outside the picture: {label:?}", act.name);
    }
}

/// An act with sixty events, most of them within a few milliseconds, with renewals, losses and three clients.
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
            Admission::Admitted
        } else {
            Admission::Rejected(9)
        };
        act.events.push(Event::Operation(Operation {
            message: message.clone(),
            operation,
            token: Some(u64::from(step)),
            value: Some(format!("order {step}")),
            verdict: Some(verdict),
        }));
        act.events.push(Event::Request(Request {
            message,
            request: RequestKind::Acquire,
            answer: None,
        }));
        let items = vec![format!("order {step}")];
        act.events.push(Event::Content {
            at_ms: at + 0.4,
            items,
            highest: Some(u64::from(step)),
        });
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
            let words = super::svg::escape(&super::spans::describe(event));
            assert!(
                picture.contains(&words) && page.contains(&format!("<td>{words}</td>")),
                "{words}"
            );
        }
    }
}

#[test]
fn every_operation_of_the_fixture_has_its_words_and_its_sign() {
    for act in acts() {
        let scene = scene(&act);
        for (index, event) in act.events.iter().enumerate() {
            let told = scene.labels.iter().any(|label| label.event == Some(index));
            assert!(
                told || !matches!(
                    event,
                    Event::Operation(_) | Event::Granted { .. } | Event::Paused { .. }
                )
            );
        }
        let rejected = scene
            .marks
            .iter()
            .filter(|mark| mark.class == "reject")
            .count();
        assert_eq!(rejected, usize::from(act.name == ActName::Claim));
    }
}

#[test]
fn labels_of_the_fixture_do_not_overlap() {
    acts().iter().for_each(assert_legible);
}

#[test]
fn the_overlap_checker_finds_a_planted_overlap() {
    let mut areas = label_areas(&scene(&acts()[1]));
    let planted = Rect {
        x: areas[0].x + 3.0,
        ..areas[0]
    };
    areas.push(planted);
    assert!(overlaps(&areas).contains(&(0, areas.len() - 1)));
}

#[test]
fn an_empty_act_lays_out() {
    let act = Act::new(ActName::Unfenced);
    assert_legible(&act);
    assert!(scene(&act).height > 100.0);
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
    act.lanes[1].label = evil.into();
    act.verdict.content = vec![evil.into()];
    act.verdict.incomplete = Some(evil.into());
    act.events.push(Event::Content {
        at_ms: 9.0,
        items: vec![evil.into()],
        highest: Some(1),
    });
    act.events.push(Event::Paused {
        from_ms: 9.0,
        to_ms: Some(10.0),
        client: evil.into(),
    });
    for text in [
        svg(std::slice::from_ref(&act)),
        html(std::slice::from_ref(&act)),
    ] {
        assert!(!text.contains("<script") && !text.contains('\u{1}'));
        assert!(text.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
    }
}

#[test]
fn the_files_stand_alone_and_are_small() {
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
fn the_axis_keeps_order_and_keeps_instants_apart() {
    for act in acts() {
        let axis = Axis::new(&act.events, 0.0, 1000.0);
        let mut times: Vec<f64> = act.events.iter().flat_map(super::spans::instants).collect();
        times.sort_by(f64::total_cmp);
        for pair in times.windows(2) {
            let (a, b) = (axis.x(pair[0]), axis.x(pair[1]));
            assert!(a <= b && (0.0..=1000.0).contains(&a));
            assert!(pair[1] - pair[0] < 0.1 || b - a > 6.0, "{pair:?}: {a} {b}");
        }
        assert!(axis.ticks().len() > 3 && !axis.stretches().is_empty());
    }
}

#[test]
fn the_verdict_is_compared_and_not_believed() {
    let headlines: Vec<String> = acts().iter().map(|act| act.verdict.headline()).collect();
    let wanted = [
        "acknowledged update of B lost",
        "acknowledged update of A lost",
        "nothing lost: A’s late write was rejected",
    ];
    assert_eq!(headlines, wanted);
    let incomplete = Verdict {
        incomplete: Some("B was never granted".into()),
        ..acts()[2].verdict.clone()
    };
    assert_eq!(
        (incomplete.outcome(), acts()[2].verdict.outcome()),
        (Outcome::Incomplete, Outcome::Kept)
    );
}

#[test]
fn the_gap_between_belief_and_truth_is_drawn_only_where_there_is_one() {
    let gaps = |act: &Act| {
        scene(act)
            .marks
            .iter()
            .filter(|mark| mark.class == "gap")
            .count()
    };
    let mut act = acts().remove(0);
    assert_eq!(gaps(&act), 1, "A's belief outlives its lease, B's does not");
    for event in &mut act.events {
        if let Event::Believed { to_ms, .. } = event {
            *to_ms = to_ms.map(|end| end - 2000.0);
        }
    }
    assert_eq!(gaps(&act), 0);
}

#[test]
fn spans_that_run_backwards_and_times_that_are_none_lay_out() {
    let mut act = acts().remove(1);
    for (index, event) in act.events.iter_mut().enumerate() {
        let odd = [f64::NAN, f64::INFINITY, -80.0, 1e12][index % 4];
        match event {
            Event::Believed { to_ms, .. } | Event::Paused { to_ms, .. } => *to_ms = Some(odd),
            Event::Expired { at_ms, .. } | Event::Content { at_ms, .. } => *at_ms = odd,
            Event::Request(request) => request.message.arrived_ms = Some(odd),
            Event::Operation(operation) => operation.message.sent_ms = Some(odd),
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
fn a_fence_that_falls_is_called_broken() {
    let words = |act: &Act| {
        svg(std::slice::from_ref(act))
            .matches("fence FELL: highest = 1")
            .count()
    };
    let mut act = acts().remove(2);
    assert_eq!(words(&act), 0);
    act.events.push(Event::Content {
        at_ms: 3200.0,
        items: Vec::new(),
        highest: Some(1),
    });
    assert_eq!(words(&act), 1);
}

#[test]
fn records_of_sender_and_receiver_merge_into_one_message() {
    let sender = r#"{"event":"operation","id":"A-3","client":"A","operation":"write","token":1,"sent_ms":15.2,"answered_ms":30.0}"#;
    let receiver = r#"{"event":"operation","id":"A-3","operation":"write","arrived_ms":20.5,"decided_ms":21.0,"verdict":{"rejected":2}}"#;
    let other = r#"{"event":"request","id":"A-3","client":"A","request":"renew","sent_ms":15.2,"answer":"done"}"#;
    let records =
        [receiver, sender, other].map(|line| serde_json::from_str(line).expect("a record"));
    let merged = merge(records);
    assert_eq!(merged.len(), 2);
    let Event::Operation(operation) = &merged[0] else {
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
    assert_eq!(operation.verdict, Some(Admission::Rejected(2)));
}

#[test]
fn the_fixture_has_the_words_of_the_model_and_survives_a_round_trip() {
    for act in acts() {
        let fresh = Act::new(act.name);
        assert_eq!(
            (&act.title, &act.explanation, &act.lanes),
            (&fresh.title, &fresh.explanation, &fresh.lanes)
        );
        let text = serde_json::to_string(&act).expect("an act is JSON");
        assert_eq!(
            serde_json::from_str::<Act>(&text).expect("what was written"),
            act
        );
        assert_eq!(svg(std::slice::from_ref(&act)), svg(&[act]));
    }
}
