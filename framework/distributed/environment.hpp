/// @file Which of several processes this one is, from the environment that torchrun, mpirun or srun gave it. Free of
/// LibTorch.
///
/// The first of these that is there decides, whole or not at all; a variable that is missing, no number or in
/// contradiction to another is an error that names it:
///   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; with TORCHELASTIC_USE_AGENT_STORE=True the store
///             at that address is torchrun's own (as in torch.distributed's rendezvous.py)
///   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK (Open MPI), or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (MPICH)
///   srun      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID
/// Where rank 0 is found, if MASTER_ADDR does not say: on this machine when all processes are; under srun on the first
/// node of the step, where Slurm starts rank 0; under mpirun over several machines it cannot be known: an error. The
/// port, if MASTER_PORT does not say: under srun one made from job and step, under mpirun 29500.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trainer::distributed {

struct Place {
  int rank = 0, size = 1;
  int local_rank = 0;            ///< among the processes on this machine; picks devices
  std::string address;           ///< where rank 0, or the launcher's store, is found; empty for one process
  int port = 0;                  ///< 1..65535
  bool launchers_store = false;  ///< torchrun holds the store; otherwise rank 0 does
  std::string launcher;          ///< "torchrun", "mpirun", "srun"; empty for one process
  std::string attempt = {};      ///< tells torchrun's restarts apart, which all find one store; empty without one

  [[nodiscard]] bool alone() const { return size == 1; }
};

/// Value of a variable; nothing when it is not set. An empty value counts as not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// One process unless the environment says otherwise. Throws Error (usage).
Place find_place(const Environment& environment);
/// The same, of this process.
Place find_place();

/// The first host of a Slurm node list: "node[03-10,12],gpu1" -> "node03". Empty for an empty list.
std::string first_node(const std::string& list);

}  // namespace trainer::distributed
