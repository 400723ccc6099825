//! FRR's bgpd, alone: without zebra, so that it installs no routes. It is asked by its terminal's socket, as vtysh does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::network::{self, Network, Running, Side, until};

const CONFIG: &str = "
log stdout
router bgp 64513
 bgp router-id 10.9.0.1
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor 10.9.0.2 remote-as 64512
 neighbor 10.9.0.2 password secret
 neighbor 10.9.0.2 timers connect 1
 address-family ipv4 unicast
  neighbor 10.9.0.2 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 10.9.0.2 activate
 exit-address-family
exit
";

struct Frr {
    _running: Running,
    socket: String,
}

impl Frr {
    fn start(network: &Network) -> Frr {
        let folder = network::tools().join("frr");
        let program = folder.join("bgpd");
        assert!(program.exists(), "FRR is missing: tools/setup.sh brings it");
        let libraries = format!("LD_LIBRARY_PATH={}", folder.join("lib").display());
        let (config, pid) = (network.file("bgpd.conf", CONFIG), network.path("bgpd.pid"));
        let (terminal, program) = (network.path(""), program.display().to_string());
        let own = [libraries.as_str(), &program, "--skip_runas", "--no_zebra", "-f", &config, "-i", &pid];
        let sockets = ["--vty_socket", &terminal, "-P", "0", "--log", "stdout"];
        let running = network.start(Side::Router, "env".into(), &[&own[..], &sockets].concat());
        Frr { _running: running, socket: network.path("bgpd.vty") }
    }

    /// What it says; nothing if it does not answer.
    fn ask(&self, question: &str) -> String {
        self.try_ask(question).unwrap_or_default()
    }

    /// A question ends with a zero byte, an answer with three and a status.
    fn try_ask(&self, question: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut answer = Vec::new();
        for line in ["enable", question] {
            stream.write_all(&[line.as_bytes(), b"\0"].concat())?;
            answer.clear();
            let mut byte = [0];
            while answer.len() < 4 || answer[answer.len() - 4..answer.len() - 1] != [0; 3] {
                stream.read_exact(&mut byte)?;
                answer.push(byte[0]);
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn says(&self, question: &str, parts: &[&str]) {
        let mut answer = String::new();
        let all = || {
            answer = self.ask(question);
            parts.iter().all(|part| answer.contains(part))
        };
        until(&format!("FRR says {parts:?} to {question:?}"), all).await;
    }
}

#[test]
fn frr_learns_routes_of_both_families_over_a_session_that_is_signed() {
    Network::new().with_node(async |network| {
        let frr = Frr::start(network);
        let mut node = network.node();
        node.options.password = Some("secret".to_owned());
        node.options.graceful_restart = true;
        let session = node.start();
        session.established().await;
        frr.says("show bgp ipv4 unicast 203.0.113.200/32", &["10.9.0.2", "64512:7", "valid, external, best"]).await;
        frr.says("show bgp ipv6 unicast 2001:db8:113::200/128", &["fd09::2", "64512:7", "valid, external"]).await;
        let negotiated = ["4 Byte AS: advertised and received", "Graceful Restart Capability: advertised and received"];
        frr.says("show bgp neighbors 10.9.0.2", &negotiated).await;
        let session = {
            session.end().await;
            let mut node = network.node();
            node.options.password = Some("secret".to_owned());
            node.start()
        };
        session.established().await;
        session.end().await;
        let gone = || !frr.ask("show bgp ipv4 unicast").contains("203.0.113.200");
        until("FRR has dropped the routes of a session that said good-bye", gone).await;
    });
}
