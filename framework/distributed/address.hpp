/// @file This machine's name and addresses.
#pragma once

#include <string>

namespace trainer::distributed {

std::string host_name();

/// This machine's numeric address on the network that leads to `host`; nothing is sent. On the machine called `host`
/// that may be a loopback address. Throws Error (unavailable) when the name is not known or there is no way.
std::string address_towards(const std::string& host, int port);

/// 127.x.x.x or ::1: reachable from this machine only.
bool is_loopback(const std::string& address);

}  // namespace trainer::distributed
