#include <distributed/environment.hpp>

#include <trainer/sdk/error.hpp>

#include <charconv>
#include <cstdlib>
#include <utility>

namespace trainer::distributed {
namespace {

constexpr int kMostRanks = 100'000;

[[noreturn]] void refuse(const std::string& launcher, const std::string& problem) {
  throw Error(ExitCode::usage, "the environment of " + launcher + ": " + problem);
}

/// The variables of one launcher.
class Variables {
 public:
  Variables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  [[nodiscard]] std::optional<std::string> find(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  [[nodiscard]] std::string text(const std::string& name, const std::string& others) const {
    if (const auto value = find(name)) return *value;
    refuse(launcher_, name + " is not set, although " + others);
  }
  [[nodiscard]] int number(const std::string& name, const std::string& text, int least, int most) const {
    int value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, value);
    if (problem != std::errc() || stop != end || value < least || value > most)
      refuse(launcher_, name + " is \"" + text + "\", expected a number from " + std::to_string(least) + " to " +
                            std::to_string(most));
    return value;
  }
  /// Rank, size and local rank from three variables, of which `given` is there.
  [[nodiscard]] Place place(const std::string& rank, const std::string& size, const std::string& local,
                            const std::string& given) const {
    const std::string others = given + " is; unset it to train in one process";
    Place place;
    place.launcher = launcher_;
    place.size = number(size, text(size, others), 1, kMostRanks);
    place.rank = number(rank, text(rank, others), 0, kMostRanks - 1);
    place.local_rank = number(local, text(local, others), 0, kMostRanks - 1);
    if (place.rank >= place.size)
      refuse(launcher_, rank + " is " + std::to_string(place.rank) + ", but ranks go from 0 to " + size +
                            " - 1 = " + std::to_string(place.size - 1));
    if (place.local_rank > place.rank)
      refuse(launcher_, local + " is " + std::to_string(place.local_rank) + ", more than the " +
                            std::to_string(place.rank) + " of " + rank);
    return place;
  }
  void set_port(Place& place, int otherwise) const {
    const auto port = find("MASTER_PORT");
    place.port = port ? number("MASTER_PORT", *port, 1, 65535) : otherwise;
  }
  [[nodiscard]] const std::string& launcher() const { return launcher_; }

 private:
  const Environment& environment_;
  std::string launcher_;
};

/// The first of these names that is set.
std::optional<std::string> any_of(const Variables& variables, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (variables.find(name)) return name;
  return std::nullopt;
}

Place from_torchrun(const Variables& variables, const std::string& given) {
  Place place = variables.place("RANK", "WORLD_SIZE", "LOCAL_RANK", given);
  if (place.alone()) return place;
  const std::string others = "WORLD_SIZE is " + std::to_string(place.size);
  place.address = variables.text("MASTER_ADDR", others);
  place.port = variables.number("MASTER_PORT", variables.text("MASTER_PORT", others), 1, 65535);
  place.launchers_store = variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (place.launchers_store) place.attempt = variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return place;
}

Place from_mpirun(const Variables& variables, const std::string& given) {
  const bool open_mpi = given.starts_with("OMPI");
  Place place =
      open_mpi ? variables.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", given)
               : variables.place("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", given);
  if (place.alone()) return place;
  const std::string count = open_mpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS";
  if (const auto address = variables.find("MASTER_ADDR"))
    place.address = *address;
  else if (const auto here = variables.find(count); here && variables.number(count, *here, 1, kMostRanks) == place.size)
    place.address = "127.0.0.1";
  else
    refuse("mpirun", "MASTER_ADDR is not set, and not all processes are on this machine (" + count + " is " +
                         here.value_or("not set") +
                         "), so rank 0 cannot be found; give the address of the machine "
                         "with rank 0, for example: mpirun -x MASTER_ADDR=192.168.1.10 ...");
  variables.set_port(place, 29500);
  return place;
}

Place from_srun(const Variables& variables, const std::string& given) {
  Place place = variables.place("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", given);
  if (place.alone()) return place;
  const auto job = variables.find("SLURM_JOB_ID"), step = variables.find("SLURM_STEP_ID");
  if (job && !step)  // a batch script: it has a rank and the job's tasks, but is one process
    refuse("srun",
           "SLURM_NTASKS is " + std::to_string(place.size) +
               ", but SLURM_STEP_ID is not set: this process "
               "was started by the batch script itself, and no others will come. Write \"srun trainer run ...\" "
               "there, or ask for one task");
  const auto nodes = any_of(variables, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  const auto list = any_of(variables, {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  if (const auto address = variables.find("MASTER_ADDR"))
    place.address = *address;
  else if (nodes && variables.number(*nodes, *variables.find(*nodes), 1, kMostRanks) == 1)
    place.address = "127.0.0.1";
  else if (list)
    place.address = first_node(*variables.find(*list));
  if (place.address.empty())
    refuse("srun",
           "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set, so rank 0 cannot be found; set MASTER_ADDR to "
           "the machine with rank 0");
  // Below the ports that systems give away by themselves; another for every job and step on a node.
  const auto digits = [](const std::optional<std::string>& text) {
    return text ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  };
  variables.set_port(place, static_cast<int>(20'000 + (digits(job) * 7 + digits(step)) % 10'000));
  return place;
}

}  // namespace

std::string first_node(const std::string& list) {
  const std::size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", open + 1);
  const std::size_t close = list.find(']', open);
  if (end == std::string::npos || close == std::string::npos) return {};
  const std::size_t next = list.find(',', close);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) +
         list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
}

Place find_place(const Environment& environment) {
  const Variables torchrun(environment, "torchrun"), mpirun(environment, "mpirun"), srun(environment, "srun");
  if (const auto given = any_of(torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK"})) return from_torchrun(torchrun, *given);
  if (const auto given = any_of(mpirun, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}))
    return from_mpirun(mpirun, *given);
  const bool slurm = srun.find("SLURM_PROCID").has_value();
  // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE as well, but not what only mpirun knows.
  if (const auto given = any_of(mpirun, {"PMI_SIZE", "PMI_RANK"}); given && (!slurm || mpirun.find("MPI_LOCALRANKID")))
    return from_mpirun(mpirun, *given);
  // SLURM_PROCID is in every process of a job; SLURM_NTASKS only where several tasks were asked for.
  if (slurm && srun.find("SLURM_NTASKS")) return from_srun(srun, "SLURM_PROCID");
  return {};
}

Place find_place() {
  return find_place([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace trainer::distributed
