/// @file Which rank a process is, from the variables of torchrun, srun and mpirun; what is contradictory is refused.
#include <gtest/gtest.h>

#include <distributed/environment.hpp>
#include <map>
#include <trainer/sdk/error.hpp>

namespace trainer::distributed {
namespace {

using Variables = std::map<std::string, std::string>;

Place place_of(const Variables& variables) {
  return find_place([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    place_of(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::usage);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun{
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "gpu1"}, {"MASTER_PORT", "29511"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSrun{{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_ID", "4711"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NODELIST", "node[07-08]"}};

TEST(Environment, NoneIsOneProcess) {
  EXPECT_TRUE(place_of({}).alone());
  EXPECT_TRUE(place_of({{"MASTER_ADDR", "gpu1"}}).alone());
  EXPECT_TRUE(place_of({{"RANK", ""}, {"WORLD_SIZE", ""}}).alone());
}

TEST(Environment, Torchrun) {
  const Place place = place_of(kTorchrun);
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.address, "gpu1");
  EXPECT_EQ(place.port, 29511);
  EXPECT_FALSE(place.launchers_store);
  EXPECT_EQ(place.attempt, "");
  const Place agent = place_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_TRUE(agent.launchers_store);
  EXPECT_EQ(agent.attempt, "0");
  EXPECT_EQ(place_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}))
                .attempt,
            "2");
}

TEST(Environment, TorchrunWithOneProcessNeedsNoAddress) {
  EXPECT_TRUE(place_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}).alone());
}

TEST(Environment, EveryMissingVariableIsNamed) {
  for (const auto& [name, value] : kTorchrun)
    EXPECT_NE(refusal_of(without(kTorchrun, name)).find(name + " is not set"), std::string::npos) << name;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"})
    EXPECT_NE(refusal_of(without(kOpenMpi, name)).find(std::string(name) + " is not set"), std::string::npos) << name;
  EXPECT_NE(refusal_of(without(kSrun, "SLURM_LOCALID")).find("SLURM_LOCALID is not set"), std::string::npos);
}

TEST(Environment, ValuesThatAreNoNumbersAreNamed) {
  EXPECT_NE(refusal_of(with(kTorchrun, {{"RANK", "one"}})).find("RANK is \"one\""), std::string::npos);
  EXPECT_NE(refusal_of(with(kTorchrun, {{"WORLD_SIZE", "4x"}})).find("WORLD_SIZE is \"4x\""), std::string::npos);
  EXPECT_NE(refusal_of(with(kTorchrun, {{"WORLD_SIZE", "0"}})).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(refusal_of(with(kTorchrun, {{"MASTER_PORT", "65536"}})).find("MASTER_PORT"), std::string::npos);
  EXPECT_NE(refusal_of(with(kTorchrun, {{"RANK", "99999999999"}})).find("RANK"), std::string::npos);
}

TEST(Environment, ContradictionsAreNamed) {
  EXPECT_NE(refusal_of(with(kTorchrun, {{"RANK", "4"}})).find("RANK is 4"), std::string::npos);
  EXPECT_NE(refusal_of(with(kTorchrun, {{"RANK", "0"}})).find("LOCAL_RANK is 1"), std::string::npos);
}

TEST(Environment, MpirunOnOneMachineMeetsThere) {
  const Place place = place_of(kOpenMpi);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_EQ(place.port, 29500);
  EXPECT_EQ(place.launcher, "mpirun");
}

TEST(Environment, MpirunOverMachinesNeedsAnAddress) {
  const Variables two = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_NE(refusal_of(two).find("MASTER_ADDR is not set"), std::string::npos);
  EXPECT_EQ(place_of(with(two, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}})).address, "a");
}

TEST(Environment, Mpich) {
  const Place place =
      place_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.address, "127.0.0.1");
}

TEST(Environment, SrunMeetsOnTheFirstNode) {
  const Place place = place_of(kSrun);
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.address, "node07");
  EXPECT_EQ(place.port, 20'000 + (4711 * 7 + 2) % 10'000);
  EXPECT_EQ(place_of(with(kSrun, {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "9"}})).address, "x");
  EXPECT_EQ(place_of(with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}})).address, "127.0.0.1");
}

TEST(Environment, SrunWithPmiVariablesIsSrun) {
  EXPECT_EQ(place_of(with(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})).launcher, "srun");
}

TEST(Environment, SrunWithoutAnyAddressIsRefused) {
  EXPECT_NE(refusal_of(without(kSrun, "SLURM_STEP_NODELIST")).find("MASTER_ADDR"), std::string::npos);
}

TEST(Environment, ABatchScriptWithSeveralTasksIsRefused) {
  const std::string text =
      refusal_of(with(without(kSrun, "SLURM_STEP_ID"), {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_NE(text.find("SLURM_STEP_ID is not set"), std::string::npos);
  EXPECT_NE(text.find("srun trainer run"), std::string::npos);
  EXPECT_TRUE(place_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}).alone());
}

TEST(Environment, TorchrunInsideOfSlurmIsTorchrun) { EXPECT_EQ(place_of(with(kSrun, kTorchrun)).launcher, "torchrun"); }

TEST(Environment, FirstNode) {
  EXPECT_EQ(first_node("node1"), "node1");
  EXPECT_EQ(first_node("a,b[1-3]"), "a");
  EXPECT_EQ(first_node("node[03-10,12],gpu1"), "node03");
  EXPECT_EQ(first_node("rack[1,4]-n7,x"), "rack1-n7");
  EXPECT_EQ(first_node("n[5]"), "n5");
  EXPECT_EQ(first_node(""), "");
  EXPECT_EQ(first_node("n[5"), "");
}

}  // namespace
}  // namespace trainer::distributed
