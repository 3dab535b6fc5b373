//! What a nemesis needs in place before a world starts: its environment, its folders, its network.

mod delay_proxy;
mod disk;
mod namespaces;
pub(crate) mod shim;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_testbed::Proxy;

use super::ledger::Ledger;
use super::nemesis::Nemesis;
use super::world::Plan;
use delay_proxy::DelayProxy;
use disk::SmallDisk;
pub(crate) use namespaces::{Cut, NAMESPACES, Namespaces};
use shim::{Shim, Warp};

/// What surrounds the processes of a world.
#[derive(Default)]
pub(super) struct Stage {
    shim: Option<Shim>,
    /// The clocks of the authority, of the resource, and of every third worker.
    pub(super) warps: Vec<Warp>,
    /// The authority's and the resource's.
    pub(crate) disks: Vec<SmallDisk>,
    pub(super) namespaces: Option<Namespaces>,
    relayed: bool,
    /// For each worker the relay to the authority and the relay to the resource.
    pub(super) relays: Vec<[Proxy; 2]>,
    needs_delay_proxy: bool,
    delay_proxy: Option<DelayProxy>,
}

/// Whose clock each warp is; the workers share those after these two.
const AUTHORITY: usize = 0;
const RESOURCE: usize = 1;
const WARPS: usize = 5;

impl Stage {
    /// Sets up what this nemesis needs.
    ///
    /// # Errors
    /// What the machine does not allow, in words for the report.
    pub(super) fn set(nemesis: Nemesis, folder: &Path) -> Result<Stage, String> {
        let mut stage = Stage::default();
        match nemesis {
            Nemesis::WallClock | Nemesis::ClockRate => {
                if !cfg!(target_arch = "x86_64") {
                    return Err(
                        "the shim controls all clocks of a process on x86-64 only".to_owned()
                    );
                }
                let shim = Shim::build(folder)?;
                shim.check(folder)?;
                stage.shim = Some(shim);
                let warps = (0..WARPS).map(|at| Warp::new(folder.join(format!("clock-{at}"))));
                stage.warps = warps.collect::<Result<_, _>>()?;
            }
            Nemesis::FailedSync => stage.shim = Some(Shim::build(folder)?),
            Nemesis::DiskFull => {
                for name in ["authority-disk", "resource-disk"] {
                    stage.disks.push(SmallDisk::new(&folder.join(name))?);
                }
            }
            Nemesis::Partition => stage.namespaces = Some(Namespaces::build(folder)?),
            Nemesis::Delay => stage.relayed = true,
            Nemesis::Duplicate => stage.needs_delay_proxy = true,
            _ => {}
        }
        Ok(stage)
    }

    fn environment(&self, warp: usize) -> Vec<(String, String)> {
        let shim = self.shim.iter().flat_map(Shim::environment);
        let clock = self.warps.get(warp).into_iter().flat_map(Warp::environment);
        shim.chain(clock).collect()
    }

    pub(super) fn authority_environment(&self) -> Vec<(String, String)> {
        self.environment(AUTHORITY)
    }

    pub(super) fn resource_environment(&self) -> Vec<(String, String)> {
        self.environment(RESOURCE)
    }

    pub(super) fn worker_environment(&self, worker: usize) -> Vec<(String, String)> {
        match self.warps.is_empty() {
            true => Vec::new(),
            false => self.environment(RESOURCE + 1 + worker % (WARPS - RESOURCE - 1)),
        }
    }

    /// The words before a worker's command.
    pub(super) fn worker_way(&self, worker: usize) -> Vec<String> {
        let namespaces = self.namespaces.as_ref();
        let way = namespaces.and_then(|namespaces| namespaces.prefix(worker % NAMESPACES));
        way.unwrap_or_default()
    }

    pub(super) fn authority_data(&self) -> Option<PathBuf> {
        self.disks.get(AUTHORITY).map(SmallDisk::data)
    }

    pub(super) fn resource_data(&self) -> Option<PathBuf> {
        self.disks.get(RESOURCE).map(SmallDisk::data)
    }

    pub(super) fn authority_listen(&self) -> SocketAddr {
        self.namespaces
            .as_ref()
            .map_or(LOOPBACK, Namespaces::authority)
    }

    pub(super) fn resource_listen(&self) -> SocketAddr {
        self.namespaces
            .as_ref()
            .map_or(LOOPBACK, Namespaces::resource)
    }

    /// Puts relays and proxies between workers and servers, once both servers run.
    pub(super) fn connect(
        &mut self,
        authority: &str,
        resource: SocketAddr,
        plan: &Plan,
        ledger: &Arc<Ledger>,
    ) -> Result<(), String> {
        if self.relayed {
            let address = authority.strip_prefix("http://").unwrap_or(authority);
            let address: SocketAddr = address
                .parse()
                .map_err(|_| format!("cannot relay to {authority}: it is no address and port"))?;
            let pair = |_| [Proxy::to(address), Proxy::to(resource)];
            self.relays = plan.all_workers().map(pair).collect();
        }
        if self.needs_delay_proxy {
            let delay_proxy = DelayProxy::open(resource, plan.ttl, plan.seed, Arc::clone(ledger));
            self.delay_proxy = Some(delay_proxy?);
        }
        Ok(())
    }

    /// The authority's URL for this worker.
    pub(super) fn authority_for(&self, worker: usize, url: &str) -> String {
        match self.relays.get(worker) {
            Some([authority, _]) => format!("http://{}", authority.addr()),
            None => url.to_owned(),
        }
    }

    /// The resource's address for this worker.
    pub(super) fn resource_for(&self, worker: usize, address: SocketAddr) -> String {
        let relayed = self.relays.get(worker).map(|[_, resource]| resource.addr());
        let delay_proxy = self.delay_proxy.as_ref().map(DelayProxy::address);
        relayed.or(delay_proxy).unwrap_or(address).to_string()
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
