//! Peers that are not what they should be: the cause is told, and other sessions go on.

use std::time::Duration;

use signpost_wire::bgp::PeerAs;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::network::{Network, until};

async fn troubled(network: &Network, change: impl FnOnce(&mut super::network::Node), said: &str) {
    let mut node = network.node();
    change(&mut node);
    let session = node.start();
    until(&format!("the session says {said:?}"), || session.troubles().iter().any(|one| one.contains(said))).await;
    assert_ne!(session.state(), "Established");
}

#[test]
fn a_wrong_as_number_and_a_wrong_password_are_told() {
    Network::new().with_node(async |network| {
        let _bird = network.bird(&super::bird("passive on;"));
        let wrong = |node: &mut super::network::Node| node.options.peer = PeerAs::Number(65000);
        troubled(network, wrong, "the peer is of AS 64513, not of the configured one").await;
        // The router throws unsigned packets away and is thrown away what it does not sign: nothing comes back.
        let signed = |node: &mut super::network::Node| node.options.password = Some("secret".to_owned());
        troubled(network, signed, "no connection to 10.9.0.1:179: ").await;
    });
}

#[test]
fn a_peer_that_sends_garbage_or_goes_away_is_told_and_tried_again() {
    Network::new().with_node(async |network| {
        let listener = TcpListener::bind("10.9.0.2:1790").await.unwrap();
        let peer = tokio::spawn(async move {
            for garbage in [&b"GET / HTTP/1.0\r\n\r\n garbage"[..], b""] {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(garbage).await.unwrap();
                // The other side may have hung up already.
                let _ = stream.shutdown().await;
            }
            std::future::pending::<()>().await;
        });
        let mut node = network.node();
        node.options.address = "10.9.0.2:1790".parse().unwrap();
        let session = node.start();
        for said in ["a message begins without its marker", "the peer closed the connection"] {
            until(said, || session.troubles().iter().any(|one| one.contains(said) || one.contains("connection broke")))
                .await;
        }
        peer.abort();
    });
}

#[test]
fn a_vrf_that_is_not_there_is_told() {
    Network::new().with_node(async |network| {
        let elsewhere = |node: &mut super::network::Node| node.options.vrf = Some("red".to_owned());
        troubled(network, elsewhere, "the vrf red cannot be used: ").await;
        let _bird = network.bird(&super::bird("passive on;"));
        let mut node = network.node();
        // Any device bounds a connection as a vrf's does.
        node.options.vrf = Some("wire".to_owned());
        node.start().established().await;
    });
}

#[test]
fn a_hundred_peers_that_cannot_be_reached_hold_no_other_session_up() {
    Network::new().with_node(async |network| {
        let bird = network.bird(&super::bird("passive on;"));
        let lost: Vec<_> = (0..100)
            .map(|number| {
                let mut node = network.node();
                node.options.address = format!("10.77.0.{number}:179").parse().unwrap();
                node.start()
            })
            .collect();
        let session = network.node().start();
        session.established().await;
        bird.says(&["show", "route"], &["203.0.113.200/32"]).await;
        until("each says why", || lost.iter().all(|one| !one.troubles().is_empty())).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(session.state(), "Established");
    });
}
