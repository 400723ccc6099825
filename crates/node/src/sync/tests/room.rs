//! A map of the kernel that fills up.

use std::fmt::Write;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event as LogEvent, Level, Metadata, Subscriber};

use super::*;

/// The warnings, each as a line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &LogEvent<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_map_that_is_nearly_full_is_told_once_until_there_is_room_again() {
    let mut world = World::started(Kernel::default());
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        // Of how many in a hundred it is told: at 80, and again only if it was below 75.
        for (used, told) in [(79, false), (80, true), (95, false), (76, false), (80, false), (74, false), (81, true)] {
            let room = Room { map: "slots", used, most: 100, flag: "--ebpf-backends" };
            world.kernel.lock().unwrap().rooms = vec![room];
            world.see(Event::SliceApplied(slice("web", u8::try_from(used).unwrap())));
            world.run_for(Duration::from_secs(1));
            // What an Event on the Node is made of.
            assert_eq!(world.sync.take_crowded(), if told { vec![room] } else { vec![] }, "{used}");
            let lines = std::mem::take(&mut *log.0.lock().unwrap());
            let lines: Vec<_> = lines.iter().filter(|line| line.contains("nearly full")).collect();
            assert_eq!(lines.len(), usize::from(told), "{used}: {lines:?}");
            let words = ["\"slots\"", &format!("used={used}"), "most=100", "--ebpf-backends"];
            assert!(lines.iter().all(|line| words.iter().all(|word| line.contains(word))), "{lines:?}");
            let text = world.sync.metrics.text(None, &Default::default());
            assert!(text.contains(&format!("signpost_map_entries{{map=\"slots\"}} {used}\n")), "{text}");
            assert!(text.contains("signpost_map_max_entries{map=\"slots\"} 100\n"), "{text}");
        }
    });
}
