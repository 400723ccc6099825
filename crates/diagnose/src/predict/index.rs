//! Pure. A view whose pods and nodes are found without going through all of them.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{ClusterView, NodeView, PodView};
use crate::address::{PodName, Source};

/// A view in which pods are found by their address, their name and their node, and nodes by their name.
#[derive(Debug)]
pub struct Indexed<'a> {
    /// The view.
    pub view: &'a ClusterView,
    by_address: HashMap<IpAddr, Vec<usize>>,
    by_name: HashMap<&'a PodName, usize>,
    /// The first pod of each node that has a network of its own.
    first_on: HashMap<&'a str, usize>,
    /// The pods in each node's network.
    in_network_of: HashMap<&'a str, Vec<usize>>,
    nodes: HashMap<&'a str, usize>,
}

impl<'a> Indexed<'a> {
    /// Of a view.
    pub fn of(view: &'a ClusterView) -> Indexed<'a> {
        let mut index = Indexed {
            view,
            by_address: HashMap::with_capacity(view.pods.len()),
            by_name: HashMap::with_capacity(view.pods.len()),
            first_on: HashMap::new(),
            in_network_of: HashMap::new(),
            nodes: HashMap::new(),
        };
        for (number, node) in view.nodes.iter().enumerate() {
            index.nodes.entry(&node.name).or_insert(number);
        }
        for (number, pod) in view.pods.iter().enumerate() {
            index.by_address.entry(pod.address).or_default().push(number);
            index.by_name.entry(&pod.name).or_insert(number);
            if pod.host_network {
                index.in_network_of.entry(&pod.node).or_default().push(number);
            } else {
                index.first_on.entry(&pod.node).or_insert(number);
            }
        }
        index
    }

    /// The pods that have an address; of a node's address, those in the node's network.
    pub fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &'a PodView> {
        let numbers = self.by_address.get(&address).into_iter().flatten();
        numbers.map(|number| &self.view.pods[*number])
    }

    /// A pod by name.
    pub fn pod(&self, name: &PodName) -> Option<&'a PodView> {
        self.by_name.get(name).map(|number| &self.view.pods[*number])
    }

    /// Some pod of a node that has a network of its own.
    pub fn some_pod_on(&self, node: &str) -> Option<&'a PodView> {
        self.first_on.get(node).map(|number| &self.view.pods[*number])
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&'a NodeView> {
        self.nodes.get(name).map(|number| &self.view.nodes[*number])
    }

    /// See [`ClusterView::address_of`].
    pub fn address_of(&self, sender: &Source) -> Option<IpAddr> {
        match sender {
            Source::Pod(name) => self.pod(name).map(|pod| pod.address),
            Source::Node(name) => self.node(name).map(|node| node.primary),
            Source::Outside => self.view.outside,
        }
    }

    pub(super) fn host_of<'b>(&'b self, sender: &'b Source) -> Option<&'b str> {
        match sender {
            Source::Node(name) => Some(name),
            Source::Pod(name) => self.pod(name).filter(|pod| pod.host_network).map(|pod| pod.node.as_str()),
            Source::Outside => None,
        }
    }

    pub(super) fn pods_in_network_of(&self, node: &str) -> impl Iterator<Item = &'a PodView> {
        let numbers = self.in_network_of.get(node).into_iter().flatten();
        numbers.map(|number| &self.view.pods[*number])
    }
}
