#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ops/empty.h>
#include <distributed/address.hpp>
#include <distributed/exchange.hpp>

#include <cstdlib>
#include <map>

namespace trainer::distributed {
namespace {

using std::chrono::milliseconds;

/// Gloo's own limit for one exchange: who is late is found by Meeting, which knows who still works and who does not.
constexpr std::chrono::hours kGlooTimeout{24 * 7};
constexpr milliseconds kLook{100};  ///< between looks at the meeting while waiting

std::string text_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

void check_addresses(const Meeting& meeting) {
  for (const Peer& peer : meeting.peers())
    if (is_loopback(peer.address) && peer.host != meeting.peers().front().host)
      throw Error(ExitCode::unavailable, "MASTER_ADDR leads to " + peer.address + " on " + peer.host +
                                             ", which other machines cannot reach; set it to the address of rank 0");
  const Peer& first = meeting.peers().front();
  for (const Peer& peer : meeting.peers())
    if (is_loopback(first.address) && peer.host != first.host)
      throw Error(ExitCode::unavailable,
                  "on " + first.host + " MASTER_ADDR means " + first.address + ", which " + peer.host +
                      " cannot reach; set it to a numeric address, or GLOO_SOCKET_IFNAME to the network interface");
}

std::shared_ptr<gloo::transport::Device> device_of(const Place& place, const Meeting& meeting) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0')
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  check_addresses(meeting);
  return c10d::ProcessGroupGloo::createDeviceForHostname(meeting.peers()[static_cast<std::size_t>(place.rank)].address);
}

}  // namespace

struct Exchange::Gloo {
  Meeting& meeting;
  int rank, ranks;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  bool broken = false;
  std::map<at::DeviceType, std::unique_ptr<Lane>> lanes{};

  [[nodiscard]] Lane* lane_of(const at::Tensor& tensor) const {
    const auto it = lanes.find(tensor.device().type());
    return it == lanes.end() ? nullptr : it->second.get();
  }
  /// `work` by a lane.
  void by_lane(const std::function<void(const std::function<void()>& waiting)>& work) {
    try {
      work([this] { meeting.waiting(); });
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      meeting.broken(first_line(text_of(std::current_exception())));
    }
  }

  void wait(const c10::intrusive_ptr<c10d::Work>& work) {
    try {
      while (!ended(*work)) meeting.waiting();
      if (const std::exception_ptr problem = work->exception()) meeting.broken(first_line(text_of(problem)));
    } catch (...) {
      broken = true;
      throw;
    }
  }

 private:
  /// Waits a moment. Whether the exchange is over is asked last, and whether it failed is for the work itself to say:
  /// it may end just after the wait gave up.
  static bool ended(c10d::Work& work) {
    try {
      work.wait(kLook);
    } catch (const std::exception&) {  // time is over, or what exception() tells
    }
    return work.isCompleted();
  }
};

Exchange::Exchange(const Place& place, Meeting& meeting, milliseconds timeout) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device_of(place, meeting));
    options->threads = 1;
    const auto store = c10::make_intrusive<c10d::PrefixStore>("trainer/gloo", meeting.store());
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.size, options);
    group->setTimeout(kGlooTimeout);
    gloo_.reset(new Gloo{meeting, place.rank, place.size, std::move(group)});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    meeting.broken(first_line(error.what()) +
                   "; the ranks met, but could not connect with each other (GLOO_SOCKET_IFNAME names the network "
                   "interface to use)");
  }
}

Exchange::~Exchange() {
  // A thread of a broken group waits for what never comes, and its destructor would wait for the thread.
  if (gloo_->broken) static_cast<void>(gloo_->group.release());
}

void Exchange::use(at::DeviceType type, OpenLane open) {
  gloo_->lanes[type].reset(open(gloo_->meeting.store()->clone(), gloo_->rank, gloo_->ranks));
}

bool Exchange::carries(at::Device device) const { return device.is_cpu() || gloo_->lanes.contains(device.type()); }

at::Tensor Exchange::gather(const at::Tensor& own) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), gloo_->ranks);
  at::Tensor all = at::empty(sizes, own.options()), mine = own;
  gloo_->meeting.enter();
  at::Tensor flat = all.view({-1}), mine_flat = mine.view({-1});
  if (Lane* lane = gloo_->lane_of(own))
    gloo_->by_lane([&](const auto& waiting) { lane->gather(flat, mine_flat, waiting); });
  else
    gloo_->wait(gloo_->group->_allgather_base(flat, mine_flat));
  return all;
}

at::Tensor Exchange::swap(const at::Tensor& rows) {
  at::Tensor out = at::empty(rows.sizes(), rows.options()), in = rows;
  std::vector<int64_t> even;
  gloo_->meeting.enter();
  if (Lane* lane = gloo_->lane_of(rows))
    gloo_->by_lane([&](const auto& waiting) { lane->swap(out, in, waiting); });
  else
    gloo_->wait(gloo_->group->alltoall_base(out, in, even, even));
  return out;
}

}  // namespace trainer::distributed
