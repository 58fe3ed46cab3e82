// Boost.Asio's way to serve: echo serve PORT | echo ask PORT SECONDS CONNECTIONS
// The server is one io_context on two threads; each client has one message of 64 bytes under way, and looks at each byte of the answer.

#include <boost/asio.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace asio = boost::asio;
using asio::ip::tcp;

struct Session : std::enable_shared_from_this<Session> {
    tcp::socket socket;
    std::array<char, 4096> data;

    explicit Session(tcp::socket taken) : socket(std::move(taken)) { socket.set_option(tcp::no_delay(true)); }

    void read() {
        auto self = shared_from_this();
        socket.async_read_some(asio::buffer(data), [self](boost::system::error_code error, std::size_t count) {
            if (error) return;
            asio::async_write(self->socket, asio::buffer(self->data, count),
                              [self](boost::system::error_code failed, std::size_t) { if (!failed) self->read(); });
        });
    }
};

struct Server {
    tcp::acceptor acceptor;

    Server(asio::io_context &context, tcp::endpoint at) : acceptor(context, at) { accept(); }

    void accept() {
        acceptor.async_accept([this](boost::system::error_code error, tcp::socket taken) {
            if (!error) std::make_shared<Session>(std::move(taken))->read();
            accept();
        });
    }
};

struct Client : std::enable_shared_from_this<Client> {
    tcp::socket socket;
    const bool &over;
    long &count;
    unsigned turn;
    std::array<char, 64> request, answer;

    Client(asio::io_context &context, tcp::endpoint to, const bool &over, long &count, unsigned seed)
        : socket(context), over(over), count(count), turn(seed) {
        socket.connect(to);
        socket.set_option(tcp::no_delay(true));
    }

    void ask() {
        if (over) return;
        for (char &byte : request) byte = static_cast<char>(turn = turn * 1103515245 + 12345);
        auto self = shared_from_this();
        asio::async_write(socket, asio::buffer(request), [self](boost::system::error_code error, std::size_t) {
            if (error) throw boost::system::system_error(error);
            asio::async_read(self->socket, asio::buffer(self->answer), [self](boost::system::error_code failed, std::size_t) {
                if (failed) throw boost::system::system_error(failed);
                if (self->answer != self->request) { std::puts("another answer than was asked for"); std::exit(1); }
                ++self->count;
                self->ask();
            });
        });
    }
};

int main(int argc, char **argv) {
    const std::string mode = argc > 2 ? argv[1] : "";
    asio::io_context context;
    if (mode == "serve" && argc == 3) {
        Server server(context, tcp::endpoint(asio::ip::address_v4::loopback(), std::atoi(argv[2])));
        std::thread second([&] { context.run(); });
        context.run();
        second.join();
    } else if (mode == "ask" && argc == 5) {
        bool over = false;
        long count = 0;
        const tcp::endpoint to(asio::ip::address_v4::loopback(), std::atoi(argv[2]));
        const double seconds = std::atof(argv[3]);
        asio::steady_timer timer(context, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
        timer.async_wait([&](boost::system::error_code) { over = true; });
        for (int client = 0; client < std::atoi(argv[4]); ++client)
            std::make_shared<Client>(context, to, over, count, client + 1)->ask();
        context.run();
        std::printf("echoes/s: %.1f\n", count / seconds);
    } else {
        std::fputs("echo serve PORT | echo ask PORT SECONDS CONNECTIONS\n", stderr);
        return 2;
    }
}
