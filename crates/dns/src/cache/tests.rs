use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::{A, SOA};

use super::*;
use crate::config::ServeStale;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn settings() -> Settings {
    let keep =
        |most_s| Keep { capacity: 100, most_ttl: Duration::from_secs(most_s), least_ttl: Duration::from_secs(5) };
    Settings {
        zones: vec![Name::root()],
        except: Vec::new(),
        success: keep(60),
        denial: keep(30),
        servfail: Duration::from_secs(5),
        serve_stale: None,
        prefetch: None,
    }
}

fn found(ttl_s: u32) -> Response {
    let answers = vec![Record::from_rdata(name("a.example."), ttl_s, RData::A(A::new(192, 0, 2, 1)))];
    Response { answers, ..Response::code(ResponseCode::NoError) }
}

fn denied(code: ResponseCode, ttl_s: u32) -> Response {
    let soa = SOA::new(name("ns.example."), name("h.example."), 1, 1, 1, 1, ttl_s);
    let authorities = vec![Record::from_rdata(name("example."), 3600, RData::SOA(soa))];
    Response { authorities, ..Response::code(code) }
}

fn key() -> Key {
    Key::new(&name("A.Example."), RecordType::A, false, false)
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// For how many seconds an answer is there.
fn kept_s(settings: Settings, response: &Response) -> Option<u64> {
    let mut cache = Cache::new(settings);
    cache.put(key(), response, s(1_000), &mut Random::new(1));
    (0..4_000).take_while(|age| cache.get(&key(), &name("a.example."), s(1_000 + age)).is_some()).last()
}

#[test]
fn answers_are_kept_as_long_as_they_say_within_bounds() {
    for (response, last) in [
        (found(20), Some(19)),
        (found(0), Some(4)),
        (found(500), Some(59)),
        (denied(ResponseCode::NXDomain, 10), Some(9)),
        (denied(ResponseCode::NoError, 500), Some(29)),
        (Response::code(ResponseCode::NXDomain), None),
        (Response::code(ResponseCode::ServFail), Some(4)),
        (Response::code(ResponseCode::Refused), None),
        (Response { truncated: true, ..found(20) }, None),
    ] {
        assert_eq!(kept_s(settings(), &response), last, "{response:?}");
    }
}

#[test]
fn the_time_that_is_left_is_told_and_the_name_as_it_is_asked_for() {
    let mut cache = Cache::new(settings());
    cache.put(key(), &found(20), s(100), &mut Random::new(1));
    let hit = cache.get(&key(), &name("a.eXample."), s(107)).unwrap();
    assert_eq!((hit.response.answers[0].ttl, hit.is_stale, hit.prefetch), (13, false, false));
    assert!(hit.response.answers[0].name.eq_case(&name("a.eXample.")));
    assert!(
        cache.get(&Key::new(&name("a.example."), RecordType::A, true, false), &name("a.example."), s(107)).is_none()
    );
    // A "no" takes an answer's place.
    cache.put(key(), &denied(ResponseCode::NXDomain, 10), s(108), &mut Random::new(1));
    assert_eq!(cache.get(&key(), &name("a.example."), s(109)).unwrap().response.code, ResponseCode::NXDomain);
    assert_eq!(cache.len(), (0, 1));
}

#[test]
fn an_old_answer_serves_for_as_long_as_it_may_and_is_refreshed_once() {
    let mut cache =
        Cache::new(Settings { serve_stale: Some(ServeStale { lasts: s(60), verify: false }), ..settings() });
    cache.put(key(), &found(20), s(0), &mut Random::new(1));
    let mut get = |now| cache.get(&key(), &name("a.example."), s(now));
    let hit = get(30).unwrap();
    assert_eq!((hit.is_stale, hit.prefetch, hit.response.answers[0].ttl), (true, true, 0));
    assert!(!get(31).unwrap().prefetch, "one refresh at a time");
    assert!(get(79).is_some() && get(80).is_none());
}

#[test]
fn a_popular_answer_is_asked_for_again_before_its_time_is_over() {
    let prefetch = Prefetch { amount: 3, within: s(15), percentage: 20 };
    let mut cache = Cache::new(Settings { prefetch: Some(prefetch), ..settings() });
    cache.put(key(), &found(50), s(0), &mut Random::new(1));
    let wants: Vec<bool> = [5, 15, 25, 38, 41, 42]
        .into_iter()
        .map(|now| cache.get(&key(), &name("a.example."), s(now)).unwrap().prefetch)
        .collect();
    assert_eq!(wants, [false, false, false, false, true, false]);
    cache.not_refreshed(&key());
    assert!(cache.get(&key(), &name("a.example."), s(43)).unwrap().prefetch);
}

#[test]
fn there_are_never_more_than_the_capacity() {
    let mut cache = Cache::new(settings());
    let mut random = Random::new(5);
    for n in 0..1_000 {
        let key = Key::new(&name(&format!("n{n}.example.")), RecordType::A, false, false);
        cache.put(key.clone(), &found(20), s(n), &mut random);
        assert!(cache.len().0 <= 100 && cache.get(&key, &name("x."), s(n)).is_some());
    }
    assert_eq!(cache.len(), (100, 0));
}
