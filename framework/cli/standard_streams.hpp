/// @file stdin, stdout and stderr as whoever started the program left them: closed, or a disk that is full.
#pragma once

namespace trainer::cli {

/// Opens /dev/null in place of each of the three that is closed: else the next file to be opened, a lock or weights,
/// would get its number and with it what is printed. What is printed to a file or a pipe is kept back, up to 1 MiB.
/// First of all, before anything is opened or printed.
void open_closed_streams();

/// The exit code of a command that ended with `code`, once its results are out: that of an input or output error, with
/// a message on stderr, where they could not be written. A reader that has gone, as `head`, has what it wanted.
int after_output(int code);

}  // namespace trainer::cli
