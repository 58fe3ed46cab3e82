# Ruby: a threaded server and its clients, gets and puts, IO.copy_stream, non-blocking reads
. "$(dirname "$0")/../../apps/lib.sh"
need ruby
version ruby --version
port=$(free_port)
some_bytes 6000000 >"$WORK/file"
cat >"$WORK/server.rb" <<'RB'
require 'socket'
server = TCPServer.new('127.0.0.1', ARGV[0].to_i)
loop do
  Thread.new(server.accept) do |client|
    while (line = client.gets)
      case line
      when /^file/ then IO.copy_stream(ARGV[1], client); break
      when /^sum (\d+)/ then client.puts client.read($1.to_i).sum
      else client.puts line.chomp.reverse
      end
    end
    client.close
  end
end
RB
cat >"$WORK/client.rb" <<'RB'
require 'socket'; require 'digest/sha2'
threads = (1..10).map do |n|
  Thread.new do
    out = []
    TCPSocket.open('127.0.0.1', ARGV[0].to_i) do |s|
      20.times { |k| s.puts "line #{n} #{k}"; out << s.gets }
      data = (n.to_s * 500_000); s.puts "sum #{data.size}"; s.write data; out << s.gets
      s.puts 'file'; digest = Digest::SHA256.new
      begin
        loop { digest << s.read_nonblock(70_000) }
      rescue IO::WaitReadable
        IO.select([s]); retry
      rescue EOFError
      end
      out << digest.hexdigest
    end
    out.join
  end
end
puts threads.map(&:value)
RB
launch ruby "$WORK/server.rb" "$port" "$WORK/file"
main=$server
await_listener "$port"
with_mode ruby "$WORK/client.rb" "$port" | sha256sum
expect_lanes "$main" 10
