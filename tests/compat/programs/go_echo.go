package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if os.Args[1] == "server" {
		listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
		if err != nil {
			panic(err)
		}
		for {
			connection, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			go func() { io.Copy(connection, connection); connection.Close() }()
		}
	}
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[2])
	if err != nil {
		panic(err)
	}
	buffer := make([]byte, 64)
	for i := 0; i < 2000; i++ {
		message := fmt.Sprintf("message %d", i)
		connection.Write([]byte(message))
		if _, err := io.ReadFull(connection, buffer[:len(message)]); err != nil || string(buffer[:len(message)]) != message {
			panic(message)
		}
	}
	fmt.Println("2000 round trips")
}
