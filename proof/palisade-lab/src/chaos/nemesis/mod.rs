//! The faults that a world suffers while it works. All random choices come from the seed, the same for every arm.

mod clocks;
mod disks;
pub(super) mod fault;
mod network;
mod nodes;
mod signals;

pub(super) use nodes::KINDS;

use super::stop::Stop;
use super::world::World;
use fault::Nemesis;

impl Nemesis {
    /// Runs until `stop` is set.
    ///
    /// # Errors A change that could not be undone.
    pub(super) fn run(self, world: &World, stop: &Stop) -> Result<(), String> {
        match self {
            Nemesis::None => Ok(()),
            Nemesis::Holder => {
                signals::each_team(world, |team, random| {
                    signals::pause_holders(world, team, random, stop);
                });
                Ok(())
            }
            Nemesis::Clients => {
                signals::each_team(world, |team, random| {
                    signals::pause_clients(world, team, random, stop);
                });
                Ok(())
            }
            Nemesis::PauseAuthority => {
                signals::pause_server(world, signals::Server::Authority, stop);
                Ok(())
            }
            Nemesis::PauseResource => {
                signals::pause_server(world, signals::Server::Resource, stop);
                Ok(())
            }
            Nemesis::KillClients => signals::kill_clients(world, stop),
            Nemesis::KillAuthority => signals::kill_server(world, signals::Server::Authority, stop),
            Nemesis::KillResource => signals::kill_server(world, signals::Server::Resource, stop),
            Nemesis::Delay => {
                network::delay(world, stop);
                Ok(())
            }
            // The proxy decides for each request.
            Nemesis::Duplicate => Ok(()),
            Nemesis::Partition => network::partition(world, stop),
            Nemesis::WallClock => clocks::jump(world, stop),
            Nemesis::ClockRate => clocks::run_wrong(world, stop),
            Nemesis::DiskFull => disks::fill(world, stop),
            Nemesis::FailedSync => disks::fail_syncs(world, stop),
            Nemesis::OneClock => clocks::jump_one(world, stop),
            Nemesis::KillLeader => nodes::only(world, nodes::Kind::KillLeader, stop),
            Nemesis::PauseLeader => nodes::only(world, nodes::Kind::PauseLeader, stop),
            Nemesis::Cuts => nodes::cuts(world, stop),
            Nemesis::Nodes => nodes::all(world, stop),
        }
    }
}
