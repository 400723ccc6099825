use super::*;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::netns::Netns;

const DEADLINE: Duration = Duration::from_secs(5);

fn server(listens: &[&str]) -> (Netns, EchoServer) {
    let netns = Netns::new(false).unwrap();
    let listens: Vec<Listen> = listens.iter().map(|text| text.parse().unwrap()).collect();
    let identity = Identity { pod: "web-1".into(), namespace: "default".into(), node: "n1".into() };
    let mut server = EchoServer::new(identity);
    server.listen(netns.run(|| Sockets::bind(&listens)).unwrap()).unwrap();
    (netns, server)
}

fn connect(netns: &Netns, to: &str) -> io::Result<TcpStream> {
    let stream = netns.run(|| std::net::TcpStream::connect(to))?;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

async fn say(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 4096];
    let length = timeout(DEADLINE, stream.read(&mut buffer)).await.unwrap().unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

#[tokio::test]
async fn each_line_on_a_plain_connection_is_answered_with_one() {
    let (netns, _server) = server(&["tcp/8080"]);
    let mut stream = connect(&netns, "127.0.0.1:8080").unwrap();
    for word in ["one", "two"] {
        let answer: Answer = serde_json::from_str(&say(&mut stream, &format!("{word}\n")).await).unwrap();
        assert_eq!((answer.pod.as_str(), answer.node.as_str(), answer.protocol.as_str()), ("web-1", "n1", "tcp"));
        assert_eq!(answer.echo.as_deref(), Some(word));
        assert_eq!(answer.peer, stream.local_addr().unwrap());
        assert_eq!(answer.reached, "127.0.0.1:8080".parse().unwrap());
    }
}

#[tokio::test]
async fn http_requests_get_http_answers_on_one_connection() {
    let (netns, server) = server(&["tcp/8080"]);
    let mut stream = connect(&netns, "[::1]:8080").unwrap();
    let text = say(&mut stream, "GET /a?b HTTP/1.1\r\nHost: web\r\n\r\n").await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("X-Pod: web-1"), "{head}");
    let answer: Answer = serde_json::from_str(body).unwrap();
    assert_eq!(answer.request.as_deref(), Some("GET /a?b"));
    assert_eq!(answer.headers.unwrap()["host"], "web");
    let text = say(&mut stream, "POST /status/418 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").await;
    assert!(text.starts_with("HTTP/1.1 418 ") && text.contains("\"echo\":\"abc\""), "{text}");
    assert!(say(&mut stream, "GET /healthz HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
    server.set_healthy(false);
    let text = say(&mut stream, "GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("Connection: close"), "{text}");
}

#[tokio::test]
async fn datagrams_are_answered_from_the_address_that_was_asked() {
    let (netns, _server) = server(&["udp/5353"]);
    for (from, to) in [("127.0.0.1:0", "127.0.0.7:5353"), ("[::1]:0", "[::1]:5353")] {
        let socket = netns.run(|| std::net::UdpSocket::bind(from)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UdpSocket::from_std(socket).unwrap();
        socket.connect(to).await.unwrap(); // takes answers from `to` only
        socket.send(b"hello\n").await.unwrap();
        let mut buffer = vec![0; 4096];
        let length = timeout(DEADLINE, socket.recv(&mut buffer)).await.unwrap().unwrap();
        let answer: Answer = serde_json::from_slice(&buffer[..length]).unwrap();
        assert_eq!((answer.reached, answer.bytes), (to.parse().unwrap(), 5));
        assert_eq!(answer.peer, socket.local_addr().unwrap());
    }
}

#[tokio::test]
async fn a_deafened_server_refuses_new_connections_and_keeps_old_ones() {
    let (netns, mut server) = server(&["tcp/8080"]);
    let mut stream = connect(&netns, "127.0.0.1:8080").unwrap();
    say(&mut stream, "a\n").await;
    server.deafen();
    let refused = async {
        while connect(&netns, "127.0.0.1:8080").is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, refused).await.unwrap();
    assert!(say(&mut stream, "b\n").await.contains("\"echo\":\"b\""));
    drop(server);
    let mut rest = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[test]
fn arguments_say_where_to_listen() {
    let words = |text: &str| text.split(' ').filter(|w| !w.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(arguments(&[]).unwrap(), DEFAULT_LISTEN);
    let listens = arguments(&words("--listen tcp/80 --listen=udp/127.0.0.1:53 --listen tcp/[::1]:81")).unwrap();
    let texts: Vec<String> = listens.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["tcp/80", "udp/127.0.0.1:53", "tcp/[::1]:81"]);
    // What the error says to write is taken as it stands.
    assert_eq!(arguments(&words("tcp/9090 udp/53")).unwrap(), ["tcp/9090".parse().unwrap(), "udp/53".parse().unwrap()]);
    for bad in ["--listen", "--listen tcp", "--listen icmp/1", "--port 80", "--listen tcp/99999", "--listenx", "80"] {
        assert!(arguments(&words(bad)).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_head_without_end_ends_the_connection() {
    let (netns, _server) = server(&["tcp/8080"]);
    let mut long = connect(&netns, "127.0.0.1:8080").unwrap();
    let mut slow = connect(&netns, "127.0.0.1:8080").unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nA: 1\r\n").await.unwrap();
    let flood = async {
        long.write_all(b"GET / HTTP/1.1\r\n").await?;
        loop {
            long.write_all(&[b"A: ".as_slice(), &[b'x'; 1000], b"\r\n"].concat()).await?;
        }
    };
    let ended: io::Result<()> = timeout(DEADLINE, flood).await.expect("headers were read without end");
    assert!(ended.is_err());
    let mut rest = Vec::new();
    timeout(DEADLINE * 3, slow.read_to_end(&mut rest)).await.expect("half a head held its connection").unwrap();
    assert!(rest.is_empty());
}
