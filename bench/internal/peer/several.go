package peer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// several is Clients that share nothing, as in processes of their own; each is for one caller.
type several struct {
	clients []Client
	callers atomic.Int64
}

// Several opens so many clients.
func Several(ctx context.Context, k Kind, c Config, n int) (Client, error) {
	c.Callers, c.Connections = 1, 1
	s := &several{}
	for range n {
		client, err := k.Open(ctx, c)
		if err != nil {
			return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
		s.clients = append(s.clients, client)
	}
	return s, nil
}

func (s *several) Caller(ctx context.Context) (Caller, error) {
	return s.clients[s.callers.Add(1)-1].Caller(ctx)
}

func (s *several) Requests() (n int64) {
	for _, c := range s.clients {
		n += c.Requests()
	}
	return n
}

func (s *several) Close(ctx context.Context) error {
	errs := make([]error, len(s.clients))
	var all sync.WaitGroup
	for i, c := range s.clients {
		all.Go(func() { errs[i] = c.Close(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}
