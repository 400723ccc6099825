//! The tasks: one per kind that is watched, some per controller, one for resyncs.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use signpost_metallb::{
    BGPAdvertisement, ConfigurationState, IPAddressPool, L2Advertisement, ServiceBGPStatus, ServiceL2Status,
};
use tokio::task::JoinSet;

use crate::cache::Transition;
use crate::context::{Context, Watched};
use crate::controller::Controller;
use crate::feed::feed;
use crate::queue::Outcome;
use crate::{
    announced, deployments, endpoint_slices, endpoints, garbage, load_balancers, mirroring, replica_sets, scheduler,
    stateful_sets,
};

/// Starts a watch for each kind that a running controller needs.
pub fn feed_caches(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    fn start<K: Watched>(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
        if context.world.is_fed(&K::kind(&())) {
            tasks.spawn(feed::<K>(context.clone()));
        }
    }
    start::<Pod>(context, tasks);
    start::<Service>(context, tasks);
    start::<EndpointSlice>(context, tasks);
    start::<Endpoints>(context, tasks);
    start::<Node>(context, tasks);
    start::<ReplicaSet>(context, tasks);
    start::<Deployment>(context, tasks);
    start::<StatefulSet>(context, tasks);
    start::<ControllerRevision>(context, tasks);
    start::<Namespace>(context, tasks);
    start::<IPAddressPool>(context, tasks);
    start::<ConfigurationState>(context, tasks);
    start::<L2Advertisement>(context, tasks);
    start::<BGPAdvertisement>(context, tasks);
    start::<ServiceL2Status>(context, tasks);
    start::<ServiceBGPStatus>(context, tasks);
}

/// Starts the workers; they begin when every cache has had its first list.
pub fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    workers(context, tasks, endpoint_slices::Controller::default());
    workers(context, tasks, endpoints::Controller::default());
    workers(context, tasks, mirroring::Controller);
    workers(context, tasks, replica_sets::Controller);
    workers(context, tasks, deployments::Controller);
    workers(context, tasks, stateful_sets::Controller);
    workers(context, tasks, scheduler::Controller);
    workers(context, tasks, garbage::Controller);
    workers(context, tasks, load_balancers::Controller::default());
    workers(context, tasks, announced::Controller);
    tasks.spawn(resync(context.clone()));
}

fn workers<C: Controller>(context: &Arc<Context>, tasks: &mut JoinSet<()>, controller: C) {
    let controller = Arc::new(controller);
    for _ in 0..C::WORKERS {
        tasks.spawn(work(context.clone(), controller.clone()));
    }
}

async fn work<C: Controller>(context: Arc<Context>, controller: Arc<C>) {
    context.synced().await;
    let queue = C::queue(&context);
    loop {
        let key = queue.next().await;
        let outcome = match controller.reconcile(&context, &key).await {
            Ok(outcome) => outcome,
            Err(error) => {
                if error.is_conflict() || error.is_not_found() {
                    tracing::debug!(controller = C::NAME, ?key, %error, "looking again");
                } else {
                    tracing::warn!(controller = C::NAME, ?key, %error, "will be tried again");
                }
                Outcome::Retry
            }
        };
        queue.finish(&key, outcome);
    }
}

/// Names everything to the queues once in a while: should a change ever have been lost, it is found then.
async fn resync(context: Arc<Context>) {
    fn again<K: Watched>(context: &Context) {
        for object in K::cache(&context.world).all() {
            K::route(context, &Transition { old: Some(object.clone()), new: Some(object) });
        }
    }
    loop {
        tokio::time::sleep(context.options.resync).await;
        again::<Service>(&context);
        again::<Pod>(&context);
        again::<ReplicaSet>(&context);
        again::<Deployment>(&context);
        again::<StatefulSet>(&context);
        again::<EndpointSlice>(&context);
        again::<Endpoints>(&context);
    }
}
