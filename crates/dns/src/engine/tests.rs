//! Server blocks as a Corefile writes them, with upstreams that the test plays.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record};
use signpost_core::object::ObjectName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use super::*;
use crate::corefile;
use crate::message::{ClientEdns, Transport};
use crate::metrics::Metrics;
use crate::object::{Change, Kind, Pod, Port, Protocol, Service, StandsFor};
use crate::source::SharedZone;
use crate::zone::{Settings, Zone};

const LISTENER: &str = "127.0.0.1:53";

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// An upstream: answers every name with 192.0.2.N, and those that begin with "no" with NXDOMAIN.
struct FakeUpstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// What it does with a packet.
fn played(packet: &[u8], last: u8, by_tcp: bool) -> Vec<u8> {
    let question = Message::from_vec(packet).unwrap();
    let asked = question.queries[0].clone();
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.message_type = MessageType::Response;
    answer.add_query(asked.clone());
    let first = asked.name.iter().next().unwrap_or_default();
    if first.starts_with(b"no") {
        answer.metadata.response_code = ResponseCode::NXDomain;
        let soa = SOA::new(name("ns."), name("h."), 1, 1, 1, 1, 60);
        answer.add_authority(Record::from_rdata(Name::root(), 60, RData::SOA(soa)));
    } else if first.starts_with(b"long") && !by_tcp {
        answer.metadata.truncation = true;
    } else {
        answer.add_answer(Record::from_rdata(asked.name, 60, RData::A(A::new(192, 0, 2, last))));
    }
    answer.to_vec().unwrap()
}

impl FakeUpstream {
    async fn start(last: u8) -> FakeUpstream {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).await.unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (by_udp, by_tcp) = (asked.clone(), asked.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, client)) = udp.recv_from(&mut buffer).await {
                by_udp.fetch_add(1, Ordering::SeqCst);
                // A forgery comes first.
                let mut forged = played(&buffer[..length], 66, false);
                forged[0] ^= 1;
                udp.send_to(&forged, client).await.unwrap();
                udp.send_to(&played(&buffer[..length], last, false), client).await.unwrap();
            }
        });
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                by_tcp.fetch_add(1, Ordering::SeqCst);
                let length = stream.read_u16().await.unwrap();
                let mut buffer = vec![0; length.into()];
                stream.read_exact(&mut buffer).await.unwrap();
                let answer = played(&buffer, last, true);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        FakeUpstream { address, asked, _tasks: tasks }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A port that nobody listens at: asking there fails at once.
async fn nobody() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn cluster(settings: Settings) -> Arc<SharedZone> {
    let mut zone = Zone::new(settings);
    let object = |name: &str| ObjectName { namespace: "default".into(), name: name.into() };
    let service =
        |name: &str, stands_for| Change::Service(Service { name: object(name), publish_not_ready: false, stands_for });
    let port = Port { name: "http".into(), protocol: Protocol::Tcp, number: 80 };
    let addresses = vec!["10.96.0.41".parse().unwrap()];
    let alias = |to: &str| StandsFor::Name(Box::new(name(to)));
    for change in [
        Change::Namespace("default".into()),
        service("web", StandsFor::ClusterIps { addresses, ports: vec![port] }),
        service("inner", alias("web.default.svc.cluster.local.")),
        service("outer", alias("www.example.com.")),
        service("lost", alias("nobody.example.com.")),
        service("a", alias("b.default.svc.cluster.local.")),
        service("b", alias("a.default.svc.cluster.local.")),
        Change::Pod(Pod { name: object("client"), addresses: vec!["10.244.1.2".parse().unwrap()] }),
    ] {
        zone.apply(change, 1);
    }
    for kind in Kind::ALL {
        zone.apply(Change::Synced(kind), 1);
    }
    Arc::new(SharedZone::fixed(zone))
}

fn engine(corefile: &str) -> Engine {
    let config = corefile::read(corefile, |_| None).unwrap_or_else(|error| panic!("{error}"));
    let metrics = Arc::new(Metrics::new());
    let blocks = config.servers.into_iter().map(|server| {
        let zone = server.kubernetes.as_ref().map(|kubernetes| cluster(kubernetes.settings.clone()));
        Arc::new(Block::new(server, &[LISTENER.parse().unwrap()], zone, &metrics).unwrap())
    });
    Engine::new(blocks.collect())
}

fn request(asked: &str, kind: RecordType) -> Request {
    Request {
        id: 1,
        name: name(asked),
        kind,
        transport: Transport::Udp,
        recursion: true,
        checking_disabled: false,
        edns: Some(ClientEdns { payload: 1232, dnssec_ok: false }),
        size: 40,
    }
}

async fn ask_from(engine: &Engine, client: &str, asked: &str) -> String {
    let request = request(asked, RecordType::A);
    let answered = engine.answer(LISTENER.parse().unwrap(), client.parse().unwrap(), &request).await;
    let records = answered.response.answers.iter().map(|record| format!(" {}={}", record.name, record.data));
    format!("{:?}{}", answered.response.code, records.collect::<String>())
}

async fn ask(engine: &Engine, asked: &str) -> String {
    ask_from(engine, "10.244.9.9", asked).await
}

#[tokio::test]
async fn aliases_are_followed_in_the_cluster_and_beyond_and_no_further_than_is_sensible() {
    let upstream = FakeUpstream::start(1).await;
    let engine = engine(&format!(". {{\n kubernetes cluster.local\n forward . {}\n}}", upstream.address));
    let inner = "inner.default.svc.cluster.local.";
    assert_eq!(
        ask(&engine, inner).await,
        format!("NoError {inner}=web.default.svc.cluster.local. web.default.svc.cluster.local.=10.96.0.41")
    );
    let outer = "outer.default.svc.cluster.local.";
    assert_eq!(ask(&engine, outer).await, format!("NoError {outer}=www.example.com. www.example.com.=192.0.2.1"));
    let lost = "lost.default.svc.cluster.local.";
    assert_eq!(ask(&engine, lost).await, format!("NXDomain {lost}=nobody.example.com."));
    let circle = ask(&engine, "a.default.svc.cluster.local.").await;
    assert!(circle.starts_with("ServFail") && circle.matches('=').count() == MOST_ALIASES, "{circle}");
}

#[tokio::test]
async fn names_that_nobody_serves_are_refused() {
    let only_cluster = engine(". {\n kubernetes cluster.local\n}");
    assert_eq!(ask(&only_cluster, "www.example.com.").await, "Refused");
    let outer = "outer.default.svc.cluster.local.";
    assert_eq!(ask(&only_cluster, outer).await, format!("NoError {outer}=www.example.com."));
    let one_zone = engine("cluster.local {\n kubernetes\n}");
    assert_eq!(ask(&one_zone, "www.example.com.").await, "Refused");
    assert_eq!(
        ask(&one_zone, "web.default.svc.cluster.local.").await,
        "NoError web.default.svc.cluster.local.=10.96.0.41"
    );
}

#[tokio::test]
async fn each_name_goes_to_the_block_and_the_upstream_that_its_ending_names() {
    let (all, stub, deeper) =
        (FakeUpstream::start(1).await, FakeUpstream::start(2).await, FakeUpstream::start(3).await);
    let text = format!(
        ". {{\n kubernetes cluster.local\n forward . {}\n forward corp.example {} {{\n except x.corp.example\n }}\n}}\nb.corp.example {{\n forward . {}\n}}",
        all.address, stub.address, deeper.address
    );
    let engine = engine(&text);
    for (asked, last) in
        [("www.example.com.", 1), ("a.CORP.example.", 2), ("a.b.corp.example.", 3), ("a.x.corp.example.", 1)]
    {
        assert_eq!(ask(&engine, asked).await, format!("NoError {asked}=192.0.2.{last}"));
    }
    assert_eq!(ask(&engine, "long.example.com.").await, "NoError long.example.com.=192.0.2.1", "cut off, then by TCP");
}

#[tokio::test]
async fn a_dead_upstream_costs_one_try_and_all_dead_a_failure_in_time() {
    let (dead, alive) = (nobody().await, FakeUpstream::start(1).await);
    let first = engine(&format!(". {{\n forward . {dead} {} {{\n policy sequential\n }}\n}}", alive.address));
    assert_eq!(ask(&first, "www.example.com.").await, "NoError www.example.com.=192.0.2.1");
    // This one takes questions and never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().map(|address| (address, silent)).unwrap();
    let second = engine(&format!(". {{\n forward . {} {{\n read_timeout 200ms\n }}\n}}", silent.0));
    let began = Instant::now();
    assert_eq!(ask(&second, "www.example.com.").await, "ServFail");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn the_cache_answers_until_its_time_is_over_and_after_that_when_upstreams_are_silent() {
    let upstream = FakeUpstream::start(1).await;
    let engine = engine(&format!(
        ". {{\n cache 30 {{\n success 100 1 1\n denial 100 1 1\n serve_stale 1h verify\n }}\n forward . {} {{\n read_timeout 200ms\n }}\n}}",
        upstream.address
    ));
    let yes = "NoError www.example.com.=192.0.2.1";
    assert_eq!(ask(&engine, "www.example.com.").await, yes);
    assert_eq!(ask(&engine, "nothing.example.com.").await, "NXDomain");
    assert_eq!(ask(&engine, "WWW.example.com.").await, "NoError WWW.example.com.=192.0.2.1");
    assert_eq!(ask(&engine, "nothing.example.com.").await, "NXDomain");
    assert_eq!(upstream.asked(), 2);
    let deadline = Instant::now() + Duration::from_secs(10);
    while upstream.asked() == 2 {
        assert!(Instant::now() < deadline, "what was kept for a second is kept for ever");
        assert_eq!(ask(&engine, "www.example.com.").await, yes);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(upstream);
    let until = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < until {
        assert_eq!(ask(&engine, "www.example.com.").await, yes);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ask(&engine, "new.example.com.").await, "ServFail");
}

#[tokio::test]
async fn an_immediate_old_answer_is_refreshed_behind_the_clients_back() {
    let upstream = FakeUpstream::start(1).await;
    let engine = engine(&format!(
        ". {{\n cache 30 {{\n success 100 1 1\n serve_stale\n }}\n forward . {}\n}}",
        upstream.address
    ));
    let deadline = Instant::now() + Duration::from_secs(10);
    while upstream.asked() < 2 {
        assert_eq!(ask(&engine, "www.example.com.").await, "NoError www.example.com.=192.0.2.1");
        assert!(Instant::now() < deadline, "nobody asks again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_question_of_our_own_that_comes_back_takes_the_forward_out_of_service() {
    let upstream = FakeUpstream::start(1).await;
    let engine = engine(&format!(". {{\n loop\n kubernetes cluster.local\n forward . {}\n}}", upstream.address));
    engine.blocks()[0].probe_for_loops().await;
    assert_eq!(ask(&engine, "www.example.com.").await, "NoError www.example.com.=192.0.2.1");
    let probe = engine.blocks()[0].forwards[0].1.to_string();
    let request = request(&probe.to_uppercase(), RecordType::HINFO);
    engine.answer(LISTENER.parse().unwrap(), "10.0.0.1".parse().unwrap(), &request).await;
    assert_eq!(ask(&engine, "www.example.com.").await, "ServFail");
    assert_eq!(
        ask(&engine, "web.default.svc.cluster.local.").await,
        "NoError web.default.svc.cluster.local.=10.96.0.41"
    );
}

#[tokio::test]
async fn hosts_and_rewrites_come_before_the_cluster() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "192.0.2.9 from.file\n").unwrap();
    let engine = engine(&format!(
        ". {{\n rewrite name suffix .corp.example. .svc.cluster.local.\n rewrite name old.example web.default.svc.cluster.local\n \
         hosts {} {{\n 192.0.2.8 web.test\n fallthrough\n }}\n kubernetes cluster.local\n}}",
        file.path().display()
    ));
    for (asked, expected) in [
        ("web.test.", "NoError web.test.=192.0.2.8"),
        ("from.file.", "NoError from.file.=192.0.2.9"),
        ("Web.Default.Corp.Example.", "NoError Web.Default.Corp.Example.=10.96.0.41"),
        ("old.example.", "NoError old.example.=10.96.0.41"),
        ("other.test.", "Refused"),
    ] {
        assert_eq!(ask(&engine, asked).await, expected);
    }
    std::fs::write(file.path(), "192.0.2.7 from.file\n").unwrap();
    engine.blocks()[0].hosts().unwrap().read_again();
    assert_eq!(ask(&engine, "from.file.").await, "NoError from.file.=192.0.2.7");
}

#[tokio::test]
async fn autopath_walks_the_search_path_of_the_pod_that_asks() {
    let upstream = FakeUpstream::start(1).await;
    let engine = engine(&format!(
        ". {{\n autopath @kubernetes\n kubernetes cluster.local {{\n pods verified\n }}\n forward . {}\n}}",
        upstream.address
    ));
    let first = "www.example.com.default.svc.cluster.local.";
    let found = format!("NoError {first}=www.example.com. www.example.com.=192.0.2.1");
    assert_eq!(ask_from(&engine, "10.244.1.2", first).await, found);
    assert_eq!(ask_from(&engine, "10.244.1.99", first).await, "NXDomain", "no pod of the cluster");
    let other = "web.default.default.svc.cluster.local.";
    let found = format!("NoError {other}=web.default.svc.cluster.local. web.default.svc.cluster.local.=10.96.0.41");
    assert_eq!(ask_from(&engine, "10.244.1.2", other).await, found);
    let nowhere = "nothing.default.svc.cluster.local.";
    assert_eq!(ask_from(&engine, "10.244.1.2", nowhere).await, "NXDomain");
    let own = "web.default.svc.cluster.local.";
    assert_eq!(ask_from(&engine, "10.244.1.2", own).await, format!("NoError {own}=10.96.0.41"));
}
