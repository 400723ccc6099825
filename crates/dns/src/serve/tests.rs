//! Over real sockets.

use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use signpost_core::object::ObjectName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::*;
use crate::corefile;
use crate::engine::Block;
use crate::object::{Change, Endpoint, Kind, Service, Slice, StandsFor};
use crate::source::SharedZone;
use crate::zone::Zone;

const DEADLINE: Duration = Duration::from_secs(10);
const ENDPOINTS: u32 = 300;

struct World {
    shared: Arc<Shared>,
    address: SocketAddr,
    _listeners: Listeners,
}

/// A server with a headless Service of many endpoints, at a port of its own.
async fn world(ip: &str) -> World {
    // A port that nobody has: UDP and TCP are both free there a moment later, or the next one is tried.
    let mut tries = 0;
    loop {
        let free = UdpSocket::bind((ip, 0)).await.unwrap().local_addr().unwrap();
        let listen_at = if ip == "::1" { free } else { SocketAddr::new("0.0.0.0".parse().unwrap(), free.port()) };
        match try_world(listen_at) {
            Ok((shared, listeners)) => {
                let address = SocketAddr::new(ip.parse().unwrap(), free.port());
                return World { shared, address, _listeners: listeners };
            }
            Err(error) => {
                tries += 1;
                assert!(tries < 10, "{error}");
            }
        }
    }
}

fn try_world(listen_at: SocketAddr) -> Result<(Arc<Shared>, Listeners), ListenError> {
    let config = corefile::read(". {\n kubernetes cluster.local\n}", |_| None).unwrap();
    let server = config.servers[0].clone();
    let mut zone = Zone::new(server.kubernetes.as_ref().unwrap().settings.clone());
    let name = ObjectName { namespace: "default".into(), name: "db".into() };
    let endpoint = |n: u32| Endpoint {
        address: std::net::Ipv4Addr::from(0x0af4_0000 + n).into(),
        hostname: None,
        pod: None,
        ready: true,
    };
    let slice = Slice {
        name: name.clone(),
        service: "db".into(),
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        ports: Vec::new(),
        triggered_ms: None,
    };
    zone.apply(Change::Service(Service { name, publish_not_ready: false, stands_for: StandsFor::Endpoints }), 1);
    zone.apply(Change::Slice(slice), 1);
    for kind in Kind::ALL {
        zone.apply(Change::Synced(kind), 1);
    }
    let metrics = Arc::new(Metrics::new());
    let zone = Some(Arc::new(SharedZone::fixed(zone)));
    let block = Block::new(server, &[listen_at], zone, &metrics).unwrap();
    let engine = Arc::new(Engine::new(vec![Arc::new(block)]));
    let shared = Arc::new(Shared::new(engine, metrics));
    let mut listeners = Listeners::default();
    listeners.listen(&[listen_at], &shared)?;
    Ok((shared, listeners))
}

fn question(name: &str) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message
}

async fn client(world: &World) -> UdpSocket {
    let socket = UdpSocket::bind((world.address.ip(), 0)).await.unwrap();
    // Answers from any other address than the one that was asked do not arrive.
    socket.connect(world.address).await.unwrap();
    socket
}

async fn by_udp(socket: &UdpSocket, packet: &[u8]) -> Option<Message> {
    socket.send(packet).await.unwrap();
    let mut buffer = [0; 4096];
    let length = timeout(Duration::from_millis(500), socket.recv(&mut buffer)).await.ok()?.unwrap();
    Some(Message::from_vec(&buffer[..length]).unwrap())
}

#[tokio::test]
async fn what_is_cut_off_by_udp_is_whole_by_tcp_and_comes_from_where_it_was_asked() {
    for ip in ["127.0.0.1", "127.0.0.3", "::1"] {
        let world = world(ip).await;
        let asked = question("db.default.svc.cluster.local.");
        let packet = asked.to_vec().unwrap();
        let answer = by_udp(&client(&world).await, &packet).await.expect("an answer by UDP");
        assert!(answer.metadata.truncation && answer.metadata.id == asked.metadata.id && !answer.answers.is_empty());
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        // Two questions in one go are answered one after the other.
        let framed = [&(packet.len() as u16).to_be_bytes()[..], &packet].concat();
        stream.write_all(&[framed.clone(), framed].concat()).await.unwrap();
        for _ in 0..2 {
            let length = timeout(DEADLINE, stream.read_u16()).await.expect("an answer by TCP").unwrap();
            let mut buffer = vec![0; length.into()];
            stream.read_exact(&mut buffer).await.unwrap();
            let answer = Message::from_vec(&buffer).unwrap();
            assert_eq!((answer.metadata.truncation, answer.answers.len()), (false, ENDPOINTS as usize));
        }
    }
}

#[tokio::test]
async fn a_client_that_sends_rubbish_gets_few_answers_and_others_all_of_theirs() {
    let world = world("127.0.0.1").await;
    let socket = client(&world).await;
    let mut rubbish = question("db.default.svc.cluster.local.").to_vec().unwrap();
    rubbish[5] = 7;
    let mut answers = 0;
    let mut buffer = [0; 512];
    for _ in 0..2_000 {
        socket.send(&rubbish).await.unwrap();
        while socket.try_recv(&mut buffer).is_ok() {
            answers += 1;
        }
    }
    let good = question("nobody.default.svc.cluster.local.").to_vec().unwrap();
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let answer = by_udp(&socket, &good).await.expect("a question is answered, whatever came before");
        if answer.metadata.response_code == ResponseCode::NXDomain {
            break;
        }
        answers += 1;
        assert!(std::time::Instant::now() < deadline);
    }
    // A burst of 200, and 100 for each second that this took.
    assert!((100..1_500).contains(&answers), "{answers} of 2,000");
    assert!(world.shared.metrics.text().contains("signpost_dns_errors_kept_back_total"));
}

#[tokio::test]
async fn numbers_have_coredns_names() {
    let world = world("127.0.0.1").await;
    by_udp(&client(&world).await, &question("db.default.svc.cluster.local.").to_vec().unwrap()).await.unwrap();
    let text = world.shared.metrics.text();
    for line in [
        "zone=\".\",view=\"\",proto=\"udp\",family=\"1\",type=\"A\"} 1",
        "zone=\".\",view=\"\",rcode=\"NOERROR\",plugin=\"kubernetes\"} 1",
        "coredns_dns_request_duration_seconds_count{server=\"dns://:",
        "coredns_dns_response_size_bytes_bucket{server=\"dns://:",
        "coredns_forward_max_concurrent_rejects_total 0",
        "coredns_panics_total 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
